package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// start makes a reader: of a partition, or of the group with nil.
func (c *client) start(from *place) error {
	config := c.config
	if from != nil {
		config.Topic, config.Partition = from.Topic, from.Partition
		config.StartOffset, config.Logger = 0, nil
	}
	if err := config.Validate(); err != nil { // NewReader panics if it is not valid.
		return err
	}
	reader := kafka.NewReader(config)
	c.readers = append(c.readers, reader)
	if from == nil {
		return nil
	}
	if from.Offset != nil {
		return reader.SetOffset(*from.Offset)
	}
	return reader.SetOffset(c.config.StartOffset)
}

func (c *client) reader(of place) *kafka.Reader {
	return c.readers[slices.IndexFunc(c.readers, func(each *kafka.Reader) bool {
		return each.Config().Topic == of.Topic && each.Config().Partition == of.Partition
	})]
}

var partitionPattern = regexp.MustCompile(`\{topic:(\S+) partition:(\d+)\}`)

// logged finds the assignment in the log of a reader, which reports it nowhere else.
func (c *client) logged(format string, values ...any) {
	if !strings.HasPrefix(format, "subscribed to topics and partitions") {
		return
	}
	if len(c.assigned) > 0 {
		event("revoked", c.name, fields{"partitions": c.assigned})
	}
	c.assigned = []place{}
	for _, found := range partitionPattern.FindAllStringSubmatch(fmt.Sprintf(format, values...), -1) {
		number, _ := strconv.Atoi(found[2])
		c.assigned = append(c.assigned, place{Topic: found[1], Partition: number})
	}
	event("assigned", c.name, fields{"partitions": c.assigned})
}

func (c *client) poll(limit time.Duration) error {
	end := time.Now().Add(limit)
	for found := false; !found && time.Now().Before(end); {
		for _, reader := range c.readers {
			wait := time.Until(end) / time.Duration(len(c.readers))
			for { // Records that follow at once are of the same batch.
				ctx, stop := context.WithTimeout(context.Background(), wait)
				message, err := reader.FetchMessage(ctx)
				isLate := ctx.Err() != nil
				stop()
				if err != nil && isLate {
					break
				}
				if err != nil {
					return err
				}
				found, wait = true, 5*time.Millisecond
				if err := c.got(reader, message); err != nil {
					return err
				}
			}
		}
		if len(c.readers) == 0 {
			time.Sleep(time.Until(end))
		}
	}
	return nil
}

func (c *client) got(reader *kafka.Reader, message kafka.Message) error {
	headers := [][2]*string{}
	for _, each := range message.Headers {
		headers = append(headers, [2]*string{&each.Key, textOf(each.Value)})
	}
	at := place{Topic: message.Topic, Partition: message.Partition}
	put(c.next, at, message.Offset+1)
	event("record", c.name, fields{"topic": message.Topic, "partition": message.Partition, "offset": message.Offset,
		"key": textOf(message.Key), "value": textOf(message.Value), "headers": headers})
	if c.commits && c.config.GroupID != "" { // As ReadMessage does.
		return reader.CommitMessages(context.Background(), message)
	}
	put(c.read, at, message)
	return nil
}

func (c *client) commit(offsets []place) error {
	messages := []kafka.Message{}
	for _, each := range offsets { // The offset that is committed is the next one.
		messages = append(messages, kafka.Message{Topic: each.Topic, Partition: each.Partition, Offset: *each.Offset - 1})
	}
	if offsets == nil {
		for _, partitions := range c.read {
			for _, each := range partitions {
				messages = append(messages, each)
			}
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*c.limit)
	defer stop()
	err := c.readers[0].CommitMessages(ctx, messages...)
	if err == nil {
		clear(c.read)
	}
	return err
}

func (c *client) committed(partitions []place) (found []place, err error) {
	found = []place{}
	indexes := map[string][]int{}
	for _, each := range partitions {
		indexes[each.Topic] = append(indexes[each.Topic], each.Partition)
	}
	request := &kafka.OffsetFetchRequest{GroupID: c.group, Topics: indexes}
	response, err := c.admin().OffsetFetch(context.Background(), request)
	if err != nil {
		return found, err
	}
	for topic, fetched := range response.Topics {
		for _, each := range fetched {
			if each.CommittedOffset >= 0 {
				found = append(found, place{Topic: topic, Partition: each.Partition, Offset: &each.CommittedOffset})
			}
		}
	}
	return found, response.Error
}
