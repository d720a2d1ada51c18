package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
)

func (c *client) assign(partitions []place) error {
	for _, each := range partitions {
		if err := c.read(each); err != nil {
			return err
		}
	}
	return nil
}

// read begins to read a partition at an offset. It ends what was read there before.
func (c *client) read(from place) error {
	if old := c.reading[from.Topic][from.Partition]; old != nil {
		old.AsyncClose()
	}
	offset := c.config.Consumer.Offsets.Initial
	if from.Offset != nil {
		offset = *from.Offset
	}
	var partition sarama.PartitionConsumer
	var err error
	for { // The old one may still be closing.
		partition, err = c.consumer.ConsumePartition(from.Topic, from.Partition, offset)
		var isOpen sarama.ConfigurationError
		if !errors.As(err, &isOpen) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	put(c.reading, from, partition)
	go func() {
		for each := range partition.Messages() {
			c.records <- each
		}
	}()
	go func() {
		for each := range partition.Errors() {
			c.errors <- each.Err
		}
	}()
	return nil
}

func (c *client) subscribe(topics []string) (err error) {
	if c.member, err = sarama.NewConsumerGroup(c.addresses, c.group, c.config); err != nil {
		return err
	}
	go func() {
		for each := range c.member.Errors() {
			c.errors <- each
		}
	}()
	var ctx context.Context
	ctx, c.leave = context.WithCancel(context.Background())
	go func() { // Each call is one session: it ends when the group rebalances.
		for ctx.Err() == nil {
			if err := c.member.Consume(ctx, topics, c); err != nil && ctx.Err() == nil {
				if errors.Is(err, sarama.ErrClosedConsumerGroup) {
					return
				}
				c.errors <- err
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return nil
}

// Setup, Cleanup and ConsumeClaim are what sarama calls in a session of a group.
func (c *client) Setup(session sarama.ConsumerGroupSession) error {
	c.change("assigned", session, session)
	return nil
}

func (c *client) Cleanup(session sarama.ConsumerGroupSession) error {
	c.change("revoked", session, nil)
	return nil
}

func (c *client) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case each, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			select {
			case c.records <- each:
			case <-session.Context().Done():
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (c *client) change(name string, session, now sarama.ConsumerGroupSession) {
	c.lock.Lock()
	c.session = now
	c.lock.Unlock()
	places := []place{}
	for topic, partitions := range session.Claims() {
		for _, each := range partitions {
			places = append(places, place{Topic: topic, Partition: each})
		}
	}
	event(name, c.name, fields{"partitions": places})
}

func (c *client) poll(limit time.Duration) error {
	end := time.After(limit)
	for {
		select {
		case each := <-c.records:
			c.got(each)
			end = time.After(5 * time.Millisecond) // Others of the same batch.
		case err := <-c.errors:
			return err
		case <-end:
			return nil
		}
	}
}

func (c *client) got(message *sarama.ConsumerMessage) {
	headers := [][2]*string{}
	for _, each := range message.Headers {
		headers = append(headers, [2]*string{textOf(each.Key), textOf(each.Value)})
	}
	at := place{Topic: message.Topic, Partition: message.Partition}
	put(c.next, at, message.Offset+1)
	c.lock.Lock()
	if c.session != nil {
		c.session.MarkMessage(message, "")
	}
	c.lock.Unlock()
	event("record", c.name, fields{"topic": message.Topic, "partition": message.Partition, "offset": message.Offset,
		"key": textOf(message.Key), "value": textOf(message.Value), "headers": headers})
}

// commit reports an error that follows at once: sarama has no other result of a commit.
func (c *client) commit(offsets []place) error {
	c.lock.Lock()
	session := c.session
	c.lock.Unlock()
	if session == nil {
		return sarama.ErrRebalanceInProgress
	}
	for _, each := range offsets {
		metadata := ""
		if each.Metadata != nil {
			metadata = *each.Metadata
		}
		session.MarkOffset(each.Topic, each.Partition, *each.Offset, metadata)
	}
	session.Commit()
	select {
	case err := <-c.errors:
		return err
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}

func (c *client) committed(indexes map[string][]int32) (found []place, err error) {
	found = []place{}
	err = c.asAdmin(func(admin sarama.ClusterAdmin) error {
		response, err := admin.ListConsumerGroupOffsets(c.group, indexes)
		if err != nil {
			return err
		}
		for topic, blocks := range response.Blocks {
			for index, each := range blocks {
				if each.Offset >= 0 {
					found = append(found, place{Topic: topic, Partition: index, Offset: &each.Offset})
				}
			}
		}
		return nil
	})
	return found, err
}

func (c *client) pauses(indexes map[string][]int32, pause bool) {
	switch {
	case c.member != nil && pause:
		c.member.Pause(indexes)
	case c.member != nil:
		c.member.Resume(indexes)
	case pause:
		c.consumer.Pause(indexes)
	default:
		c.consumer.Resume(indexes)
	}
}
