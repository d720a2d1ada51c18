// A template of an adapter in Go: replace each TODO by what an application of your client would write.
//
//	go build -o my-adapter template.go && ./crucible client ./my-adapter --section ordinary
//
// It needs the standard library alone. The operations that your client lacks may be removed; list only features that it
// has.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

var features = []string{"producer", "consumer"}

type fields map[string]any
type place struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    *int64 `json:"offset,omitempty"`
}

// A request has the fields of all operations. Partitions are places, but for create_topic, where they are a number.
type request struct {
	Op, Client, Role, Bootstrap, Topic string
	ID, Record                         int64
	ClientID                           string `json:"client_id"`
	TimeoutMs                          int64  `json:"timeout_ms"`
	Settings                           fields // the portable ones of docs/client-adapters.md
	Key, Value                         *string
	Topics                             []string
	Offsets                            []place
	Partition, Partitions              json.RawMessage
}

type client struct{} // TODO: the client's producer and consumer

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

func serve(r *request, result fields) error {
	c, partitions := clients[r.Client], []place{}
	json.Unmarshal(r.Partitions, &partitions)
	if c == nil && r.Op != "hello" && r.Op != "open" {
		return fmt.Errorf("%s was not made", r.Client)
	}
	switch r.Op {
	case "hello":
		result["schema"], result["name"], result["version"], result["language"] = 1, "my-client", "1.0", "Go"
		result["features"] = features
	case "open": // TODO: make a producer or a consumer with the settings that it has.
		clients[r.Client] = &client{}
		ignored := []string{}
		for name := range r.Settings {
			ignored = append(ignored, name)
		}
		result["ignored"] = ignored
	case "send": // TODO: send r.Value, and report its outcome when it is known, in any goroutine.
		event("acknowledged", r.Client, fields{"record": r.Record, "partition": 0, "offset": -1})
	case "flush": // TODO: wait until each record has its outcome, or for r.TimeoutMs.
	case "assign": // TODO: read these partitions.
	case "poll": // TODO: wait for at most r.TimeoutMs. Records are events, before the reply:
		// event("record", r.Client, fields{"topic": t, "partition": p, "offset": o, "key": k, "value": v})
	case "close": // TODO
		delete(clients, r.Client)
	default:
		return fmt.Errorf("%s is not supported", r.Op)
	}
	return nil
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

// failure has Kafka's name of an error if the client has it, and how the client classifies it.
func failure(err error) fields {
	return fields{"name": "UNKNOWN", "message": err.Error(), "retriable": nil, "fatal": nil}
}
