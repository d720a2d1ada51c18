// Command kfake_server runs franz-go's fake cluster on ports of 127.0.0.1 until it is ended.
package main

import (
	"flag"
	"log"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	ports := flag.String("ports", "9092", "one port for each broker, with commas between them")
	flag.Parse()
	var numbers []int
	for _, each := range strings.Split(*ports, ",") {
		number, err := strconv.Atoi(each)
		if err != nil {
			log.Fatal(err)
		}
		numbers = append(numbers, number)
	}
	if _, err := kfake.NewCluster(kfake.Ports(numbers...)); err != nil {
		log.Fatal(err)
	}
	select {}
}
