package orders

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
)

// Crucible is a cluster for one test, with the control API that crucible serve printed.
type Crucible struct {
	Bootstrap string `json:"bootstrap_servers"`
	Control   string `json:"control"`
	Token     string `json:"token"`
}

// StartCrucible runs crucible serve until the test ends. The pipe to its stdin ends it even if this process is killed.
func StartCrucible(t *testing.T, words ...string) *Crucible {
	t.Helper()
	command := exec.Command("crucible", append([]string{"serve"}, words...)...)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil {
			t.Errorf("crucible serve: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no ready line: %v", err)
	}
	kafka := &Crucible{}
	if err := json.Unmarshal(line, kafka); err != nil {
		t.Fatal(err)
	}
	return kafka
}

// Call sends a request to the control API, and decodes the response into result. A refusal fails the test.
func (kafka *Crucible) Call(t *testing.T, method, path string, arguments, result any) {
	t.Helper()
	body, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(method, kafka.Control+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+kafka.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		refusal := struct{ Error string }{}
		json.NewDecoder(response.Body).Decode(&refusal)
		t.Fatalf("%s %s: %s", method, path, refusal.Error)
	}
	if err := json.NewDecoder(response.Body).Decode(result); err != nil {
		t.Fatal(err)
	}
}

// AddRule adds a rule. The test fails at its end if the rule never fired.
func (kafka *Crucible) AddRule(t *testing.T, fields map[string]any) {
	t.Helper()
	rule := struct{ ID int }{}
	kafka.Call(t, "POST", "/v1/rules", fields, &rule)
	t.Cleanup(func() {
		kafka.Call(t, "POST", fmt.Sprintf("/v1/rules/%d/assert-fired", rule.ID), struct{}{}, &rule)
	})
}
