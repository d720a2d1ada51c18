package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
)

func milliseconds(value any) time.Duration { return time.Duration(value.(float64)) * time.Millisecond }

var codecs = map[any]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}
var acks = map[string]sarama.RequiredAcks{"all": sarama.WaitForAll, "1": sarama.WaitForLocal, "0": sarama.NoResponse}
var strategies = map[any]sarama.BalanceStrategy{"range": sarama.NewBalanceStrategyRange(),
	"roundrobin": sarama.NewBalanceStrategyRoundRobin()}

var settings = map[string]func(*client, any){
	"request_timeout_ms": func(c *client, value any) {
		limit := milliseconds(value)
		c.config.Net.DialTimeout, c.config.Net.ReadTimeout, c.config.Net.WriteTimeout = limit, limit, limit
		c.config.Producer.Timeout, c.config.Admin.Timeout = limit, limit
	},
	"retry_backoff_ms": func(c *client, value any) {
		c.config.Producer.Retry.Backoff, c.config.Metadata.Retry.Backoff = milliseconds(value), milliseconds(value)
		c.config.Consumer.Retry.Backoff = milliseconds(value)
	},
	"metadata_max_age_ms": func(c *client, value any) { c.config.Metadata.RefreshFrequency = milliseconds(value) },
	"rack":                func(c *client, value any) { c.config.RackID = value.(string) },
	"acks":                func(c *client, value any) { c.config.Producer.RequiredAcks = acks[fmt.Sprint(value)] },
	"idempotence":         func(c *client, value any) { c.config.Producer.Idempotent = value == true },
	"transactional_id": func(c *client, value any) {
		c.config.Producer.Transaction.ID, c.config.Producer.Idempotent = value.(string), true
	},
	"transaction_timeout_ms": func(c *client, value any) { c.config.Producer.Transaction.Timeout = milliseconds(value) },
	"linger_ms":              func(c *client, value any) { c.config.Producer.Flush.Frequency = milliseconds(value) },
	"compression":            func(c *client, value any) { c.config.Producer.Compression = codecs[value] },
	"in_flight":              func(c *client, value any) { c.config.Net.MaxOpenRequests = int(value.(float64)) },
	"group":                  func(c *client, value any) { c.group = value.(string) },
	"instance":               func(c *client, value any) { c.config.Consumer.Group.InstanceId = value.(string) },
	"assignor": func(c *client, value any) {
		if strategy, known := strategies[value]; known {
			c.config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
		}
	},
	"session_timeout_ms":    func(c *client, value any) { c.config.Consumer.Group.Session.Timeout = milliseconds(value) },
	"heartbeat_interval_ms": func(c *client, value any) { c.config.Consumer.Group.Heartbeat.Interval = milliseconds(value) },
	"isolation": func(c *client, value any) {
		if value == "read_committed" {
			c.config.Consumer.IsolationLevel = sarama.ReadCommitted
		}
	},
	"reset": func(c *client, value any) {
		if value == "earliest" {
			c.config.Consumer.Offsets.Initial = sarama.OffsetOldest
		}
	},
	"auto_commit":             func(c *client, value any) { c.config.Consumer.Offsets.AutoCommit.Enable = value == true },
	"auto_commit_interval_ms": func(c *client, value any) { c.config.Consumer.Offsets.AutoCommit.Interval = milliseconds(value) },
	"fetch_max_wait_ms":       func(c *client, value any) { c.config.Consumer.MaxWaitTime = milliseconds(value) },
	"fetch_min_bytes":         func(c *client, value any) { c.config.Consumer.Fetch.Min = int32(value.(float64)) },
	"partition_max_bytes":     func(c *client, value any) { c.config.Consumer.Fetch.Default = int32(value.(float64)) },
}

func put[T any](values map[string]map[int32]T, at place, value T) {
	if values[at.Topic] == nil {
		values[at.Topic] = map[int32]T{}
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

// names are those of Kafka for errors of the protocol, which sarama describes in sentences.
var names = map[sarama.KError]string{
	sarama.ErrOffsetOutOfRange: "OFFSET_OUT_OF_RANGE", sarama.ErrInvalidMessage: "CORRUPT_MESSAGE",
	sarama.ErrUnknownTopicOrPartition: "UNKNOWN_TOPIC_OR_PARTITION", sarama.ErrLeaderNotAvailable: "LEADER_NOT_AVAILABLE",
	sarama.ErrNotLeaderForPartition: "NOT_LEADER_OR_FOLLOWER", sarama.ErrRequestTimedOut: "REQUEST_TIMED_OUT",
	sarama.ErrMessageSizeTooLarge: "MESSAGE_TOO_LARGE", sarama.ErrRebalanceInProgress: "REBALANCE_IN_PROGRESS",
	sarama.ErrUnknownMemberId: "UNKNOWN_MEMBER_ID", sarama.ErrIllegalGeneration: "ILLEGAL_GENERATION",
	sarama.ErrFencedInstancedId: "FENCED_INSTANCE_ID", sarama.ErrOutOfOrderSequenceNumber: "OUT_OF_ORDER_SEQUENCE_NUMBER",
	sarama.ErrUnknownProducerID: "UNKNOWN_PRODUCER_ID", sarama.ErrInvalidProducerEpoch: "INVALID_PRODUCER_EPOCH",
	sarama.ErrProducerFenced: "PRODUCER_FENCED", sarama.ErrConcurrentTransactions: "CONCURRENT_TRANSACTIONS",
	sarama.ErrKafkaStorageError: "KAFKA_STORAGE_ERROR", sarama.ErrNotEnoughReplicas: "NOT_ENOUGH_REPLICAS",
	sarama.ErrTopicAuthorizationFailed: "TOPIC_AUTHORIZATION_FAILED", sarama.ErrInvalidRecord: "INVALID_RECORD", sarama.ErrNotCoordinatorForConsumer: "NOT_COORDINATOR",
}

func failure(err error) fields {
	var code sarama.KError
	name := "UNKNOWN"
	if errors.As(err, &code) {
		name = names[code]
		if name == "" {
			name = fmt.Sprintf("ERROR_%d", int16(code))
		}
	} else if errors.Is(err, context.DeadlineExceeded) {
		name = "REQUEST_TIMED_OUT"
	}
	isFatal := code == sarama.ErrFencedInstancedId || code == sarama.ErrProducerFenced
	return fields{"name": name, "message": err.Error(), "retriable": name == "REQUEST_TIMED_OUT", "fatal": isFatal}
}
