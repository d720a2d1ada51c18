// Adapter of kafka-go, Segment's Kafka client in Go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

var features = []string{"producer", "consumer", "groups", "admin", "gzip", "snappy", "lz4", "zstd"}

type fields map[string]any
type place struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Offset    *int64 `json:"offset,omitempty"`
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

// A client of the suite: a producer, readers of partitions, a member of a group, or an admin.
type client struct {
	name      string
	address   net.Addr
	writer    kafka.Writer
	transport kafka.Transport
	pending   sync.WaitGroup // records without an outcome
	config    kafka.ReaderConfig
	dialer    kafka.Dialer
	group     string
	limit     time.Duration // of a request
	commits   bool          // by itself
	readers   []*kafka.Reader
	assigned  []place
	read      map[string]map[int]kafka.Message // the last record that was returned and is not committed
	next      map[string]map[int]int64         // the offset behind the last record that was returned
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
	c, partitions := clients[r.Client], []place{}
	json.Unmarshal(r.Partitions, &partitions)
	if c == nil && r.Op != "hello" && r.Op != "open" {
		return fmt.Errorf("%s was not made", r.Client)
	}
	switch r.Op {
	case "hello":
		info, _ := debug.ReadBuildInfo()
		at := slices.IndexFunc(info.Deps, func(each *debug.Module) bool { return each.Path == "github.com/segmentio/kafka-go" })
		result["schema"], result["name"], result["language"], result["features"] = 1, "kafka-go", "Go", features
		result["version"] = info.Deps[at].Version[1:]
	case "open":
		result["ignored"] = open(r)
	case "send":
		err = c.send(r)
	case "flush":
		err = c.flush(time.Duration(r.TimeoutMs) * time.Millisecond)
	case "subscribe":
		c.config.GroupID, c.config.GroupTopics = c.group, r.Topics
		err = c.start(nil)
	case "assign":
		for _, each := range partitions {
			if err = c.start(&each); err != nil {
				return err
			}
		}
	case "seek":
		var to place
		if err = json.Unmarshal(r.Partition, &to); err == nil {
			err = c.reader(to).SetOffset(*to.Offset)
		}
	case "poll":
		err = c.poll(time.Duration(r.TimeoutMs) * time.Millisecond)
	case "commit":
		err = c.commit(r.Offsets)
	case "committed":
		result["partitions"], err = c.committed(partitions)
	case "position":
		for i, each := range partitions {
			if offset, known := c.next[each.Topic][each.Partition]; known {
				partitions[i].Offset = &offset
			}
		}
		result["partitions"] = partitions
	case "create_topic":
		err = c.createTopic(r)
	case "close":
		delete(clients, r.Client)
		err = c.close()
	default:
		err = fmt.Errorf("%s is not supported", r.Op)
	}
	return err
}

func open(r *request) (ignored []string) {
	addresses := strings.Split(r.Bootstrap, ",")
	c := &client{name: r.Client, address: kafka.TCP(addresses...), limit: time.Minute,
		read: map[string]map[int]kafka.Message{}, next: map[string]map[int]int64{}}
	c.transport.ClientID, c.dialer.ClientID = r.ClientID, r.ClientID
	c.writer.Addr, c.writer.Transport, c.writer.Balancer = c.address, &c.transport, kafka.BalancerFunc(partition)
	c.writer.Async, c.writer.Completion = true, c.completed
	c.config.Brokers, c.config.Dialer, c.config.StartOffset = addresses, &c.dialer, kafka.LastOffset
	c.config.Logger = kafka.LoggerFunc(c.logged)
	ignored = []string{}
	for name, value := range r.Settings {
		if take, known := settings[name]; known {
			take(c, value)
		} else {
			ignored = append(ignored, name)
		}
	}
	clients[r.Client] = c
	return ignored
}

func (c *client) close() (err error) {
	for _, each := range c.readers {
		err = errors.Join(err, each.Close())
	}
	return errors.Join(err, c.writer.Close())
}

// Producing

// partition is that of the request, or else that of the key.
func partition(message kafka.Message, partitions ...int) int {
	number := -1
	json.Unmarshal(message.WriterData.(*request).Partition, &number)
	if number >= 0 {
		return number
	}
	return (&kafka.Hash{}).Balance(message, partitions...)
}

func (c *client) send(r *request) error {
	message := kafka.Message{Topic: r.Topic, Key: bytesOf(r.Key), Value: bytesOf(r.Value), WriterData: r}
	for _, each := range r.Headers {
		message.Headers = append(message.Headers, kafka.Header{Key: *each[0], Value: bytesOf(each[1])})
	}
	c.pending.Add(1)
	err := c.writer.WriteMessages(context.Background(), message)
	if err != nil {
		c.pending.Done()
	}
	return err
}

func (c *client) completed(messages []kafka.Message, err error) {
	for _, each := range messages {
		record := each.WriterData.(*request).Record
		if err != nil {
			event("failed", c.name, fields{"record": record, "error": failure(err)})
		} else {
			event("acknowledged", c.name, fields{"record": record, "partition": each.Partition, "offset": each.Offset})
		}
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

func (c *client) admin() *kafka.Client {
	return &kafka.Client{Addr: c.address, Transport: &c.transport, Timeout: c.limit}
}

func (c *client) createTopic(r *request) error {
	count := 1
	json.Unmarshal(r.Partitions, &count)
	topics := []kafka.TopicConfig{{Topic: r.Topic, NumPartitions: count, ReplicationFactor: 1}}
	response, err := c.admin().CreateTopics(context.Background(), &kafka.CreateTopicsRequest{Topics: topics})
	if err != nil {
		return err
	}
	return response.Errors[r.Topic]
}
