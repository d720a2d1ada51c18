// Write the same records with each Go client: CLIENT BOOTSTRAP TOPIC, see ../capture.py. Or read a topic with kafka-go:
// kafka-go-reads BOOTSTRAP TOPIC RECORDS FETCH_BYTES, see ../../tests/test_compacted_readers.py.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	key, value []byte
	header     string
}

var records = []record{
	{[]byte("k1"), bytes.Repeat([]byte("a value that is long enough to be compressed, "), 12), "trace"},
	{nil, []byte("without a key"), ""},
	{[]byte("k2"), nil, ""},
}

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func withSarama(bootstrap, topic, clientID, codec string, idempotent bool) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.ClientID = clientID
	must(config.Producer.Compression.UnmarshalText([]byte(codec)))
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Flush.Messages = len(records)
	config.Producer.Idempotent = idempotent
	if idempotent {
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	must(err)
	var messages []*sarama.ProducerMessage
	for _, each := range records {
		message := &sarama.ProducerMessage{Topic: topic}
		if each.key != nil {
			message.Key = sarama.ByteEncoder(each.key)
		}
		if each.value != nil {
			message.Value = sarama.ByteEncoder(each.value)
		}
		if each.header != "" {
			message.Headers = []sarama.RecordHeader{{Key: []byte(each.header), Value: []byte("1")}}
		}
		messages = append(messages, message)
	}
	must(producer.SendMessages(messages))
	must(producer.Close())
}

func withKafkaGo(bootstrap, topic, clientID, codec string) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, RequiredAcks: kafka.RequireAll, BatchSize: len(records),
		Transport: &kafka.Transport{ClientID: clientID},
	}
	if codec != "none" {
		must(writer.Compression.UnmarshalText([]byte(codec)))
	}
	var messages []kafka.Message
	for _, each := range records {
		message := kafka.Message{Key: each.key, Value: each.value}
		if each.header != "" {
			message.Headers = []kafka.Header{{Key: each.header, Value: []byte("1")}}
		}
		messages = append(messages, message)
	}
	must(writer.WriteMessages(context.Background(), messages...))
	must(writer.Close())
}

func withFranz(bootstrap, topic, clientID, codec string, idempotent bool) {
	compression := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[codec]
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.ClientID(clientID), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(compression),
	}
	if !idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	must(err)
	var wanted []*kgo.Record
	for _, each := range records {
		one := &kgo.Record{Key: each.key, Value: each.value}
		if each.header != "" {
			one.Headers = []kgo.RecordHeader{{Key: each.header, Value: []byte("1")}}
		}
		wanted = append(wanted, one)
	}
	must(client.ProduceSync(context.Background(), wanted...).FirstErr())
	client.Close()
}

// withKafkaGoReader prints KEY=VALUE of so many committed records of partition 0, with fetches of at most maxBytes.
func withKafkaGoReader(bootstrap, topic, count, maxBytes string) {
	most, err := strconv.Atoi(maxBytes)
	must(err)
	wanted, err := strconv.Atoi(count)
	must(err)
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: topic, Partition: 0, MinBytes: 1, MaxBytes: most,
		IsolationLevel: kafka.ReadCommitted,
	})
	for read := 0; read < wanted; {
		message, err := reader.ReadMessage(context.Background())
		must(err)
		if bytes.HasPrefix(message.Key, []byte{0, 0, 0}) {
			continue // kafka-go hands out transaction markers, too.
		}
		read++
		fmt.Printf("%s=%s\n", message.Key, message.Value)
	}
	must(reader.Close())
}

func main() {
	if os.Args[1] == "kafka-go-reads" {
		withKafkaGoReader(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	name, bootstrap, topic := os.Args[1], os.Args[2], os.Args[3]
	for _, codec := range codecs {
		for _, kind := range []string{"plain", "idempotent"} {
			clientID := fmt.Sprintf("%s/%s/%s", name, kind, codec)
			switch name {
			case "sarama":
				withSarama(bootstrap, topic, clientID, codec, kind == "idempotent")
			case "franz-go":
				withFranz(bootstrap, topic, clientID, codec, kind == "idempotent")
			case "kafka-go":
				if kind == "plain" {
					withKafkaGo(bootstrap, topic, clientID, codec)
				}
			default:
				panic("no client " + name)
			}
		}
	}
}
