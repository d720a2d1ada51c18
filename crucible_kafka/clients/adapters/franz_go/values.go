package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func milliseconds(value any) time.Duration { return time.Duration(value.(float64)) * time.Millisecond }

// with makes a setting of an option that takes a duration, a number or a text.
func with[T any, O kgo.Opt](option func(T) O, convert func(any) T) func(*client, any) {
	return func(c *client, value any) { c.options = append(c.options, option(convert(value))) }
}

func inGroup[T any, O kgo.Opt](option func(T) O, convert func(any) T) func(*client, any) {
	return func(c *client, value any) { c.ofGroup = append(c.ofGroup, option(convert(value))) }
}

func int32Of(value any) int32   { return int32(value.(float64)) }
func stringOf(value any) string { return value.(string) }

var codecs = map[any]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
var acks = map[string]kgo.Acks{"all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck()}
var balancers = map[any]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer()}
var resets = map[any]kgo.Offset{"earliest": kgo.NewOffset().AtStart(), "latest": kgo.NewOffset().AtEnd(),
	"none": kgo.NoResetOffset()}

var settings = map[string]func(*client, any){
	"request_timeout_ms": func(c *client, value any) {
		c.limit = 2 * milliseconds(value)
		c.options = append(c.options, kgo.RequestTimeoutOverhead(milliseconds(value)), kgo.ProduceRequestTimeout(milliseconds(value)))
	},
	"retry_backoff_ms": func(c *client, value any) { // It doubles up to a second, as in Kafka's own client (KIP-580).
		c.options = append(c.options, kgo.RetryBackoffFn(func(tries int) time.Duration {
			return min(milliseconds(value)<<min(max(tries-1, 0), 10), time.Second)
		}))
	},
	"metadata_max_age_ms": func(c *client, value any) {
		age := milliseconds(value)
		c.options = append(c.options, kgo.MetadataMaxAge(age), kgo.MetadataMinAge(min(age, 250*time.Millisecond)))
	},
	"connections_max_idle_ms": with(kgo.ConnIdleTimeout, milliseconds),
	"rack":                    with(kgo.Rack, stringOf),
	"transactional_id":        with(kgo.TransactionalID, stringOf),
	"transaction_timeout_ms":  with(kgo.TransactionTimeout, milliseconds),
	"linger_ms":               with(kgo.ProducerLinger, milliseconds),
	"batch_bytes":             with(kgo.ProducerBatchMaxBytes, int32Of),
	"delivery_timeout_ms":     with(kgo.RecordDeliveryTimeout, milliseconds),
	"fetch_max_wait_ms":       with(kgo.FetchMaxWait, milliseconds),
	"fetch_min_bytes":         with(kgo.FetchMinBytes, int32Of),
	"fetch_max_bytes":         with(kgo.FetchMaxBytes, int32Of),
	"partition_max_bytes":     with(kgo.FetchMaxPartitionBytes, int32Of),
	"instance":                inGroup(kgo.InstanceID, stringOf),
	"session_timeout_ms":      inGroup(kgo.SessionTimeout, milliseconds),
	"heartbeat_interval_ms":   inGroup(kgo.HeartbeatInterval, milliseconds),
	"auto_commit_interval_ms": inGroup(kgo.AutoCommitInterval, milliseconds),
	"group":                   func(c *client, value any) { c.group = value.(string) },
	"in_flight": func(c *client, value any) {
		c.options = append(c.options, kgo.MaxProduceRequestsInflightPerBroker(int(value.(float64))))
	},
	"acks": func(c *client, value any) {
		c.options = append(c.options, kgo.RequiredAcks(acks[fmt.Sprint(value)]))
		if fmt.Sprint(value) != "all" {
			c.options = append(c.options, kgo.DisableIdempotentWrite())
		}
	},
	"idempotence": func(c *client, value any) {
		if value == false {
			c.options = append(c.options, kgo.DisableIdempotentWrite())
		}
	},
	"compression": func(c *client, value any) {
		c.options = append(c.options, kgo.ProducerBatchCompression(codecs[value]))
	},
	"assignor": func(c *client, value any) { c.ofGroup = append(c.ofGroup, kgo.Balancers(balancers[value])) },
	"auto_commit": func(c *client, value any) {
		if value == false {
			c.ofGroup = append(c.ofGroup, kgo.DisableAutoCommit())
		}
	},
	"isolation": func(c *client, value any) {
		if value == "read_committed" {
			c.options = append(c.options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		}
	},
	"reset": func(c *client, value any) {
		c.reset = resets[value]
		c.options = append(c.options, kgo.ConsumeResetOffset(c.reset))
	},
}

func put[T any](values map[string]map[int32]T, at place, value T) {
	if values[at.Topic] == nil {
		values[at.Topic] = map[int32]T{}
	}
	values[at.Topic][at.Partition] = value
}

func offsetsOf(places []place) map[string]map[int32]kgo.EpochOffset {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, each := range places {
		epoch := int32(-1)
		if each.LeaderEpoch != nil {
			epoch = *each.LeaderEpoch
		}
		put(offsets, each, kgo.EpochOffset{Epoch: epoch, Offset: *each.Offset})
	}
	return offsets
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func textOf(raw []byte) *string {
	if raw == nil {
		return nil
	}
	text := string(raw)
	return &text
}

func write(message fields) {
	line, _ := json.Marshal(message)
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func event(name, client string, more fields) {
	more["event"], more["client"] = name, client
	write(more)
}

// failure names an error as Kafka does.
func failure(err error) fields {
	var known *kerr.Error
	if errors.As(err, &known) {
		isFatal := errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.FencedInstanceID) ||
			errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.TransactionalIDAuthorizationFailed)
		return fields{"name": known.Message, "message": err.Error(), "retriable": known.Retriable, "fatal": isFatal}
	}
	isLate := errors.Is(err, kgo.ErrRecordTimeout) || errors.Is(err, kgo.ErrRecordRetries) ||
		errors.Is(err, context.DeadlineExceeded)
	name := map[bool]string{true: "REQUEST_TIMED_OUT", false: "UNKNOWN"}[isLate]
	return fields{"name": name, "message": err.Error(), "retriable": isLate, "fatal": false}
}
