package orders

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestALostResponseDoesNotDuplicateAnOrder(t *testing.T) {
	kafka := StartCrucible(t)
	kafka.Call(t, "POST", "/v1/topics", map[string]any{"name": "orders"}, &struct{}{})
	kafka.AddRule(t, map[string]any{"api": "Produce", "client_id": "orders-*", "act": "drop_response", "times": 1})

	client, err := kgo.NewClient(
		kgo.SeedBrokers(kafka.Bootstrap), kgo.ClientID("orders-1"), kgo.DefaultProduceTopic("orders"),
		kgo.MetadataMinAge(100*time.Millisecond), // By default a retry waits for 5 s.
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := client.ProduceSync(ctx, kgo.StringRecord("one coffee")).FirstErr(); err != nil {
		t.Fatal(err)
	}

	var records []struct{ Value string }
	kafka.Call(t, "GET", "/v1/topics/orders/records", struct{}{}, &records)
	if len(records) != 1 || records[0].Value != "one coffee" {
		t.Fatalf("the log has %v", records)
	}
}
