// Adapter of sarama, a Kafka client in Go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var features = []string{"producer", "idempotence", "transactions", "consumer", "groups", "static-membership", "rack",
	"admin", "gzip", "snappy", "lz4", "zstd"}

type fields map[string]any
type place struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Offset    *int64  `json:"offset,omitempty"`
	Metadata  *string `json:"metadata,omitempty"`
}
type request struct {
	Op, Client, Role, Bootstrap, Topic string
	ID, Record                         int64
	ClientID                           string `json:"client_id"`
	TimeoutMs                          int64  `json:"timeout_ms"`
	Settings                           fields
	Key, Value                         *string
	Headers                            [][2]*string
	Topics                             []string
	Offsets                            []place
	Partition, Partitions              json.RawMessage // a number, or places
}

// A client of the suite: a producer, a reader of partitions, a member of a group, or an admin.
type client struct {
	name      string
	addresses []string
	config    *sarama.Config
	group     string
	producer  sarama.AsyncProducer
	pending   sync.WaitGroup // records without an outcome
	consumer  sarama.Consumer
	reading   map[string]map[int32]sarama.PartitionConsumer
	member    sarama.ConsumerGroup
	leave     context.CancelFunc
	session   sarama.ConsumerGroupSession
	records   chan *sarama.ConsumerMessage // without a buffer: what is in it was not returned yet
	errors    chan error
	next      map[string]map[int32]int64 // the offset behind the last record that was returned
	lock      sync.Mutex                 // of session
}

var clients = map[string]*client{}
var output sync.Mutex

func main() {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for line, err := input.ReadBytes('\n'); err == nil; line, err = input.ReadBytes('\n') {
		var r request
		err := json.Unmarshal(line, &r)
		result := fields{}
		if err == nil {
			err = serve(&r, result)
		}
		if err != nil {
			write(fields{"id": r.ID, "error": failure(err)})
		} else {
			write(fields{"id": r.ID, "result": result})
		}
	}
}

func serve(r *request, result fields) (err error) {
	c, partitions, indexes := clients[r.Client], []place{}, map[string][]int32{}
	if json.Unmarshal(r.Partitions, &partitions) == nil {
		for _, each := range partitions {
			indexes[each.Topic] = append(indexes[each.Topic], each.Partition)
		}
	}
	if c == nil && r.Op != "hello" && r.Op != "open" {
		return fmt.Errorf("%s was not made", r.Client)
	}
	switch r.Op {
	case "hello":
		info, _ := debug.ReadBuildInfo()
		at := slices.IndexFunc(info.Deps, func(each *debug.Module) bool { return each.Path == "github.com/IBM/sarama" })
		result["schema"], result["name"], result["language"], result["features"] = 1, "sarama", "Go", features
		result["version"] = info.Deps[at].Version[1:]
	case "open":
		result["ignored"], err = open(r)
	case "send":
		c.send(r)
	case "flush":
		err = c.flush(time.Duration(r.TimeoutMs) * time.Millisecond)
	case "begin":
		err = c.producer.BeginTxn()
	case "commit_transaction":
		err = c.producer.CommitTxn()
	case "abort_transaction":
		err = c.producer.AbortTxn()
	case "subscribe":
		err = c.subscribe(r.Topics)
	case "assign":
		err = c.assign(partitions)
	case "seek":
		var to place
		if err = json.Unmarshal(r.Partition, &to); err == nil {
			err = c.read(to)
		}
	case "pause":
		c.pauses(indexes, true)
	case "resume":
		c.pauses(indexes, false)
	case "poll":
		err = c.poll(time.Duration(r.TimeoutMs) * time.Millisecond)
	case "commit":
		err = c.commit(r.Offsets)
	case "committed":
		result["partitions"], err = c.committed(indexes)
	case "position":
		for i, each := range partitions {
			if offset, known := c.next[each.Topic][each.Partition]; known {
				partitions[i].Offset = &offset
			}
		}
		result["partitions"] = partitions
	case "create_topic":
		count := int32(1)
		json.Unmarshal(r.Partitions, &count)
		err = c.asAdmin(func(admin sarama.ClusterAdmin) error {
			return admin.CreateTopic(r.Topic, &sarama.TopicDetail{NumPartitions: count, ReplicationFactor: 1}, false)
		})
	case "close":
		delete(clients, r.Client)
		err = c.close()
	default:
		err = fmt.Errorf("%s is not supported", r.Op)
	}
	return err
}

func open(r *request) (ignored []string, err error) {
	c := &client{name: r.Client, addresses: strings.Split(r.Bootstrap, ","), config: sarama.NewConfig(),
		reading: map[string]map[int32]sarama.PartitionConsumer{}, next: map[string]map[int32]int64{},
		records: make(chan *sarama.ConsumerMessage), errors: make(chan error, 1000)}
	c.config.ClientID, c.config.Version = r.ClientID, sarama.MaxVersion
	c.config.Producer.Return.Successes, c.config.Consumer.Return.Errors = true, true
	c.config.Producer.Partitioner = func(topic string) sarama.Partitioner {
		return partitioner{sarama.NewHashPartitioner(topic)}
	}
	ignored = []string{}
	for name, value := range r.Settings {
		if take, known := settings[name]; known {
			take(c, value)
		} else {
			ignored = append(ignored, name)
		}
	}
	if c.config.Producer.Idempotent { // sarama demands both.
		c.config.Net.MaxOpenRequests, c.config.Producer.RequiredAcks = 1, sarama.WaitForAll
	}
	switch r.Role {
	case "producer":
		c.producer, err = sarama.NewAsyncProducer(c.addresses, c.config)
		if err == nil {
			go c.succeed()
			go c.fail()
		}
	case "consumer":
		c.consumer, err = sarama.NewConsumer(c.addresses, c.config)
	}
	if err == nil {
		clients[r.Client] = c
	}
	return ignored, err
}

func (c *client) close() error {
	if c.producer != nil {
		return c.producer.Close()
	}
	if c.member != nil {
		c.leave()
		return c.member.Close()
	}
	if c.consumer != nil {
		for _, partitions := range c.reading {
			for _, each := range partitions {
				each.AsyncClose()
			}
		}
		return c.consumer.Close()
	}
	return nil
}

// Producing

type partitioner struct{ sarama.Partitioner }

func (p partitioner) Partition(message *sarama.ProducerMessage, count int32) (int32, error) {
	if partition := message.Metadata.(*request).Partition; len(partition) > 0 && string(partition) != "null" {
		var number int32
		return number, json.Unmarshal(partition, &number)
	}
	return p.Partitioner.Partition(message, count)
}

func (c *client) send(r *request) {
	message := &sarama.ProducerMessage{Topic: r.Topic, Metadata: r}
	if r.Key != nil {
		message.Key = sarama.StringEncoder(*r.Key)
	}
	if r.Value != nil {
		message.Value = sarama.StringEncoder(*r.Value)
	}
	for _, each := range r.Headers {
		message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(*each[0]), Value: bytesOf(each[1])})
	}
	c.pending.Add(1)
	c.producer.Input() <- message
}

func (c *client) succeed() {
	for each := range c.producer.Successes() {
		event("acknowledged", c.name, fields{
			"record": each.Metadata.(*request).Record, "partition": each.Partition, "offset": each.Offset})
		c.pending.Done()
	}
}

func (c *client) fail() {
	for each := range c.producer.Errors() {
		event("failed", c.name, fields{"record": each.Msg.Metadata.(*request).Record, "error": failure(each.Err)})
		c.pending.Done()
	}
}

func (c *client) flush(limit time.Duration) error {
	done := make(chan struct{})
	go func() { c.pending.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-time.After(limit):
		return context.DeadlineExceeded
	}
}

func (c *client) asAdmin(work func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(c.addresses, c.config)
	if err != nil {
		return err
	}
	return errors.Join(work(admin), admin.Close())
}
