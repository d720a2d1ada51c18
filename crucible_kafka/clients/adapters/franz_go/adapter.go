// Adapter of franz-go, a Kafka client in Go.
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

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var features = []string{"producer", "idempotence", "transactions", "consumer", "groups", "cooperative",
	"static-membership", "pause", "rack", "admin", "gzip", "snappy", "lz4", "zstd"}

type fields map[string]any
type place struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Offset      *int64 `json:"offset,omitempty"`
	LeaderEpoch *int32 `json:"leader_epoch,omitempty"`
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

// A client of the suite. franz-go takes what it consumes when it is made, so a consumer is made at subscribe or assign.
type client struct {
	*kgo.Client
	options, ofGroup []kgo.Opt
	group            string
	reset            kgo.Offset
	failed           kgo.FirstErrPromise        // of the records of the transaction
	next             map[string]map[int32]int64 // the offset behind the last record that was returned
	limit            time.Duration              // of operations that would wait without end
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
	c := clients[r.Client]
	ctx, partitions, indexes := context.Background(), []place{}, map[string][]int32{}
	if c != nil {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, c.limit)
		defer end()
	}
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
		at := slices.IndexFunc(info.Deps, func(each *debug.Module) bool { return each.Path == "github.com/twmb/franz-go" })
		result["schema"], result["name"], result["language"], result["features"] = 1, "franz-go", "Go", features
		result["version"] = info.Deps[at].Version[1:]
	case "open":
		result["ignored"], err = open(r)
	case "send":
		send(c, r)
	case "flush":
		limited, end := context.WithTimeout(context.Background(), time.Duration(r.TimeoutMs)*time.Millisecond)
		defer end()
		err = c.Flush(limited)
	case "begin":
		c.failed = kgo.FirstErrPromise{}
		err = c.BeginTransaction()
	case "commit_transaction": // The application decides, by the outcomes of its records.
		if err = c.Flush(ctx); err == nil {
			err = c.failed.Err()
		}
		if err == nil {
			err = c.EndTransaction(ctx, kgo.TryCommit)
		}
	case "abort_transaction":
		if err = c.AbortBufferedRecords(ctx); err == nil {
			err = c.EndTransaction(ctx, kgo.TryAbort)
		}
	case "subscribe":
		err = c.start(append(c.ofGroup, kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(r.Topics...))...)
	case "assign":
		from := map[string]map[int32]kgo.Offset{}
		for _, each := range partitions {
			at := c.reset
			if each.Offset != nil {
				at = kgo.NewOffset().At(*each.Offset)
			}
			put(from, each, at)
		}
		err = c.start(kgo.ConsumePartitions(from))
	case "seek":
		var to place
		if err = json.Unmarshal(r.Partition, &to); err == nil {
			c.SetOffsets(offsetsOf([]place{to}))
		}
	case "pause":
		c.PauseFetchPartitions(indexes)
	case "resume":
		c.ResumeFetchPartitions(indexes)
	case "poll":
		err = poll(c, r)
	case "commit":
		err = commit(ctx, c, r.Offsets)
	case "committed":
		result["partitions"], err = committed(ctx, c, indexes)
	case "position":
		for i, each := range partitions {
			if offset, known := c.next[each.Topic][each.Partition]; known {
				partitions[i].Offset = &offset
			}
		}
		result["partitions"] = partitions
	case "create_topic":
		err = createTopic(ctx, c, r)
	case "close":
		delete(clients, r.Client)
		if c.Client != nil {
			c.Close()
		}
	default:
		err = fmt.Errorf("%s is not supported", r.Op)
	}
	return err
}

func open(r *request) (ignored []string, err error) {
	c := &client{limit: time.Minute, next: map[string]map[int32]int64{}, reset: kgo.NewOffset().AtEnd()}
	c.options = []kgo.Opt{kgo.SeedBrokers(strings.Split(r.Bootstrap, ",")...), kgo.ClientID(r.ClientID)}
	ignored = []string{}
	for name, value := range r.Settings {
		take, known := settings[name]
		if name == "in_flight" && r.Settings["idempotence"] != false { // An idempotent producer has its own limit.
			known = false
		}
		if known {
			take(c, value)
		} else {
			ignored = append(ignored, name)
		}
	}
	clients[r.Client] = c
	switch r.Role {
	case "consumer":
		c.ofGroup = append(c.ofGroup, kgo.OnPartitionsAssigned(changed("assigned", r.Client)),
			kgo.OnPartitionsRevoked(changed("revoked", r.Client)), kgo.OnPartitionsLost(changed("lost", r.Client)))
		return ignored, nil
	case "producer": // The partition of the record, or else that of its key.
		c.options = append(c.options, kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(
			func(topic string) func(*kgo.Record, int) int {
				byKey := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
				return func(record *kgo.Record, count int) int {
					if record.Partition >= 0 {
						return int(record.Partition)
					}
					return byKey.Partition(record, count)
				}
			})))
	}
	if err = c.start(); err == nil && r.Settings["transactional_id"] != nil {
		ctx, end := context.WithTimeout(context.Background(), c.limit)
		defer end()
		_, _, err = c.ProducerID(ctx)
	}
	return ignored, err
}

func (c *client) start(more ...kgo.Opt) (err error) {
	if c.Client != nil {
		c.Close()
	}
	c.Client, err = kgo.NewClient(append(slices.Clone(c.options), more...)...)
	return err
}

func send(c *client, r *request) {
	record := &kgo.Record{Topic: r.Topic, Partition: -1, Key: bytesOf(r.Key), Value: bytesOf(r.Value)}
	json.Unmarshal(r.Partition, &record.Partition) // It stays -1 for null.
	for _, each := range r.Headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: *each[0], Value: bytesOf(each[1])})
	}
	outcome := c.failed.Promise()
	c.Produce(context.Background(), record, func(done *kgo.Record, err error) {
		defer outcome(done, err)
		if err != nil {
			event("failed", r.Client, fields{"record": r.Record, "error": failure(err)})
		} else {
			event("acknowledged", r.Client, fields{"record": r.Record, "partition": done.Partition, "offset": done.Offset})
		}
	})
}

func poll(c *client, r *request) error {
	ctx, end := context.WithTimeout(context.Background(), time.Duration(r.TimeoutMs)*time.Millisecond)
	defer end()
	fetches := c.PollFetches(ctx)
	fetches.EachRecord(func(record *kgo.Record) {
		headers := [][2]*string{}
		for _, each := range record.Headers {
			headers = append(headers, [2]*string{&each.Key, textOf(each.Value)})
		}
		put(c.next, place{Topic: record.Topic, Partition: record.Partition}, record.Offset+1)
		event("record", r.Client, fields{"topic": record.Topic, "partition": record.Partition, "offset": record.Offset,
			"key": textOf(record.Key), "value": textOf(record.Value), "headers": headers})
	})
	for _, each := range fetches.Errors() {
		var loss *kgo.ErrDataLoss // The client has reset itself, and goes on: this is for the application to know.
		if errors.As(each.Err, &loss) {
			event("log", r.Client, fields{"text": each.Err.Error()})
		} else if !errors.Is(each.Err, context.DeadlineExceeded) {
			return each.Err
		}
	}
	return nil
}

func commit(ctx context.Context, c *client, offsets []place) (failed error) {
	if offsets == nil {
		return c.CommitUncommittedOffsets(ctx)
	}
	c.CommitOffsetsSync(ctx, offsetsOf(offsets),
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			if failed = err; err == nil {
				failed = kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
			}
		})
	return failed
}

func committed(ctx context.Context, c *client, indexes map[string][]int32) (found []place, err error) {
	message := kmsg.NewPtrOffsetFetchRequest()
	message.Group = c.group
	for name, partitions := range indexes {
		message.Topics = append(message.Topics, kmsg.OffsetFetchRequestTopic{Topic: name, Partitions: partitions})
	}
	if c.Client == nil {
		err = c.start()
	}
	found = []place{}
	if err != nil {
		return found, err
	}
	response, err := message.RequestWith(ctx, c.Client)
	if err != nil {
		return found, err
	}
	err = kerr.ErrorForCode(response.ErrorCode)
	for _, topic := range response.Topics {
		for _, each := range topic.Partitions {
			if each.Offset >= 0 {
				found = append(found, place{Topic: topic.Topic, Partition: each.Partition, Offset: &each.Offset})
			}
		}
	}
	return found, err
}

func createTopic(ctx context.Context, c *client, r *request) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = r.Topic, 1, 1
	json.Unmarshal(r.Partitions, &topic.NumPartitions)
	message := kmsg.NewPtrCreateTopicsRequest()
	message.Topics = append(message.Topics, topic)
	response, err := message.RequestWith(ctx, c.Client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Topics[0].ErrorCode)
}

func changed(name, client string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, indexes map[string][]int32) {
		places := []place{}
		for topic, partitions := range indexes {
			for _, each := range partitions {
				places = append(places, place{Topic: topic, Partition: each})
			}
		}
		event(name, client, fields{"partitions": places})
	}
}
