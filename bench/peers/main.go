// Command peers compares the library with other Go libraries of its kind, with compositions of them, and with the least
// code that a person could write by hand for the same protection.
//
//	go run . speed [-rounds 15] [-time 20ms] [-fastest] [-row text]
//	go run . behaviour [-row text]
//
// It is a module of its own: none of the peers is a dependency of the library.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	if err := command(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func command(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("say speed or behaviour")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	only := flags.String("row", "", "only rows whose name contains this text")
	switch args[0] {
	case "speed":
		rounds := flags.Int("rounds", 15, "how often each contestant is measured; the median counts")
		each := flags.Duration("time", 20*time.Millisecond, "how long each contestant runs in each round")
		fastest := flags.Bool("fastest", false, "the fastest round counts instead: for a machine with other work to do")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if *rounds < 1 || *each <= 0 {
			return fmt.Errorf("-rounds and -time have to be more than 0")
		}
		return speed(out, *only, *rounds, *each, *fastest)
	case "behaviour":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return behaviour(out, *only)
	}
	return fmt.Errorf("unknown command %q: say speed or behaviour", args[0])
}
