// Command limiter measures the law of the adaptive limiter against its goals, on virtual time: what an hour of overload
// does to it is known within seconds. It prints one line per figure and tells honestly which goals are missed.
//
//	go run ./bench/limiter [-seeds 5] [-first 21] [-only overload]
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one figure of one scenario, once for each seed.
type row struct {
	scenario, figure string
	low, high        float64 // the goal
	values           []float64
}

// verdict compares all seeds with the goal.
func (r row) verdict() string {
	inside := 0
	for _, v := range r.values {
		if v >= r.low && v <= r.high {
			inside++
		}
	}
	switch inside {
	case len(r.values):
		return "met"
	case 0:
		return "MISSED"
	}
	return fmt.Sprintf("MISSED by %d of %d", len(r.values)-inside, len(r.values))
}

func (r row) goal() string {
	switch {
	case r.low == 0:
		return fmt.Sprintf("at most %.4g", r.high)
	case r.high == unbounded:
		return fmt.Sprintf("at least %.4g", r.low)
	}
	return fmt.Sprintf("%.4g to %.4g", r.low, r.high)
}

func main() {
	seeds := flag.Int("seeds", 5, "runs of each scenario that has chance in it")
	first := flag.Uint64("first", 21, "first seed")
	only := flag.String("only", "", "scenarios whose group has this in its name")
	flag.Parse()
	if *seeds < 1 {
		fmt.Fprintln(os.Stderr, "limiter: -seeds must be at least 1")
		os.Exit(2)
	}

	began := time.Now()
	var rows []row
	for i, g := range groups {
		if !strings.Contains(g.name, *only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "\r%3.0f s  %d of %d  %-40s", time.Since(began).Seconds(), i+1, len(groups), g.name)
		rows = append(rows, g.measure(*first, *seeds)...)
	}
	fmt.Fprintf(os.Stderr, "\r%60s\r", "")
	printRows(rows)
	fmt.Printf("\nSeeds %d to %d, %.0f s.\n", *first, *first+uint64(*seeds)-1, time.Since(began).Seconds())
}

func printRows(rows []row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SCENARIO\tFIGURE\tMEDIAN\tLEAST\tMOST\tGOAL\t")
	for _, r := range rows {
		sorted := slices.Sorted(slices.Values(r.values))
		fmt.Fprintf(w, "%s\t%s\t%.3f\t%.3f\t%.3f\t%s\t%s\n", r.scenario, r.figure,
			sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1], r.goal(), r.verdict())
	}
	w.Flush()
}
