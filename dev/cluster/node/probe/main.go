// Command probe is what tests of the cluster put into pods: it answers, or it asks.
//
//	probe serve ADDRESS    answer every request with the pod's name
//	probe get URL          print the answer, trying for 20 s
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: probe serve ADDRESS | probe get URL")
	}
	switch os.Args[1] {
	case "serve":
		log.Fatal(http.ListenAndServe(os.Args[2], http.HandlerFunc(answer)))
	case "get":
		// A service begins to work a moment after its pods do.
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			err := get(os.Args[2])
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				log.Fatal(err)
			}
		}
	}
}

func answer(w http.ResponseWriter, _ *http.Request) {
	name, _ := os.Hostname()
	fmt.Fprintln(w, name)
}

func get(url string) error {
	client := http.Client{Timeout: 3 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
