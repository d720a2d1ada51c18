module adapter

go 1.26

require github.com/IBM/sarama v1.61.1
