package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

func milliseconds(value any) time.Duration { return time.Duration(value.(float64)) * time.Millisecond }

var codecs = map[any]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
var acks = map[string]kafka.RequiredAcks{"all": kafka.RequireAll, "1": kafka.RequireOne, "0": kafka.RequireNone}
var balancers = map[any]kafka.GroupBalancer{"range": kafka.RangeGroupBalancer{}, "roundrobin": kafka.RoundRobinGroupBalancer{}}

var settings = map[string]func(*client, any){
	"request_timeout_ms": func(c *client, value any) {
		c.limit = milliseconds(value)
		c.writer.ReadTimeout, c.writer.WriteTimeout = c.limit, c.limit
		c.dialer.Timeout, c.transport.DialTimeout, c.config.ReadBatchTimeout = c.limit, c.limit, c.limit
	},
	"retry_backoff_ms": func(c *client, value any) {
		c.writer.WriteBackoffMin, c.config.ReadBackoffMin = milliseconds(value), milliseconds(value)
		c.config.JoinGroupBackoff = milliseconds(value)
	},
	"metadata_max_age_ms": func(c *client, value any) {
		c.transport.MetadataTTL = milliseconds(value)
		c.config.WatchPartitionChanges, c.config.PartitionWatchInterval = true, milliseconds(value)
	},
	"connections_max_idle_ms": func(c *client, value any) { c.transport.IdleTimeout = milliseconds(value) },
	"acks":                    func(c *client, value any) { c.writer.RequiredAcks = acks[fmt.Sprint(value)] },
	"linger_ms": func(c *client, value any) { // Without one kafka-go collects for a second.
		c.writer.BatchTimeout = max(milliseconds(value), time.Millisecond)
	},
	"batch_bytes": func(c *client, value any) { c.writer.BatchBytes = int64(value.(float64)) },
	"compression": func(c *client, value any) { c.writer.Compression = codecs[value] },
	"group":       func(c *client, value any) { c.group = value.(string) },
	"assignor": func(c *client, value any) {
		if balancer, known := balancers[value]; known {
			c.config.GroupBalancers = []kafka.GroupBalancer{balancer}
		}
	},
	"session_timeout_ms":    func(c *client, value any) { c.config.SessionTimeout = milliseconds(value) },
	"heartbeat_interval_ms": func(c *client, value any) { c.config.HeartbeatInterval = milliseconds(value) },
	"isolation": func(c *client, value any) {
		if value == "read_committed" {
			c.config.IsolationLevel = kafka.ReadCommitted
		}
	},
	"reset": func(c *client, value any) {
		if value == "earliest" {
			c.config.StartOffset = kafka.FirstOffset
		}
	},
	"auto_commit":             func(c *client, value any) { c.commits = value == true },
	"auto_commit_interval_ms": func(c *client, value any) { c.config.CommitInterval = milliseconds(value) },
	"fetch_max_wait_ms":       func(c *client, value any) { c.config.MaxWait = milliseconds(value) },
	"fetch_min_bytes":         func(c *client, value any) { c.config.MinBytes = int(value.(float64)) },
	"fetch_max_bytes":         func(c *client, value any) { c.config.MaxBytes = int(value.(float64)) },
}

func put[T any](values map[string]map[int]T, at place, value T) {
	if values[at.Topic] == nil {
		values[at.Topic] = map[int]T{}
	}
	values[at.Topic][at.Partition] = value
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

// names are Kafka's of errors that kafka-go names in another way.
var names = map[kafka.Error]string{
	kafka.InvalidMessage: "CORRUPT_MESSAGE", kafka.NotLeaderForPartition: "NOT_LEADER_OR_FOLLOWER",
	kafka.MessageSizeTooLarge: "MESSAGE_TOO_LARGE", kafka.GroupLoadInProgress: "COORDINATOR_LOAD_IN_PROGRESS",
	kafka.GroupCoordinatorNotAvailable: "COORDINATOR_NOT_AVAILABLE", kafka.NotCoordinatorForGroup: "NOT_COORDINATOR",
}

func failure(err error) fields {
	var code kafka.Error
	var tooLarge kafka.MessageTooLargeError
	name, isRetriable := "UNKNOWN", errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if errors.As(err, &code) {
		if name = names[code]; name == "" {
			name = strings.ToUpper(strings.ReplaceAll(code.Title(), " ", "_"))
		}
		isRetriable = code.Temporary()
	} else if errors.As(err, &tooLarge) {
		name = "MESSAGE_TOO_LARGE"
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		name, isRetriable = "REQUEST_TIMED_OUT", true
	}
	return fields{"name": name, "message": err.Error(), "retriable": isRetriable, "fatal": false}
}
