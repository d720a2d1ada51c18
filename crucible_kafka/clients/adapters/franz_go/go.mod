module adapter

go 1.24

require github.com/twmb/franz-go v1.22.3
