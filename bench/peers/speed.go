package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// speed prints the tables of the rows.
func speed(out io.Writer, only string, rounds int, each time.Duration, fastest bool) error {
	name, statistic := "Median", median
	if fastest {
		name, statistic = "Fastest", slices.Min[[]float64]
	}
	rows := containing(append(speedRows(), httpRows()...), only)
	withMemory := strings.Contains(memoryRow, only)
	if len(rows) == 0 && !withMemory {
		return fmt.Errorf("no row contains %q", only)
	}
	fmt.Fprintf(out, "%s, %s/%s, GOMAXPROCS %d. %s of %d rounds of %v for each contestant.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), name, rounds, each)
	fmt.Fprintf(out, "Against: %s.\n\n", strings.Join(peerVersions(), ", "))

	var memories []footprint
	if withMemory {
		memories = memory() // first: nothing else is in the heap
	}
	results := contest(rows, rounds, each, statistic)

	fmt.Fprintln(out, "| one call | by hand | best other peer | failsafe-go | this library | by hand × | failsafe-go ÷ | goal | met |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|")
	for _, r := range results {
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.name,
			cell(r.floor()), cell(r.best[peerSide]), cell(r.best[failsafeSide]), cell(r.ours()),
			ratio(r.ours(), r.floor()), ratio(r.best[failsafeSide], r.ours()), r.goal, metText(r))
	}
	if withMemory {
		fmt.Fprintln(out, memoryLine(memories))
	}

	fmt.Fprint(out, "\nEvery contestant:\n\n| one call | contestant | time | bytes | allocs |\n|---|---|---|---|---|\n")
	for _, r := range results {
		for _, s := range r.all {
			note := ""
			if s.part {
				note = " (a part of it)"
			}
			fmt.Fprintf(out, "| %s | %s%s | %s | %s | %d |\n", r.name, s.name, note, nanoseconds(s), thousands(s.bytes), s.allocs)
		}
	}
	for _, m := range memories {
		fmt.Fprintf(out, "| %s | %s | – | %s → %s | – |\n", memoryRow, m.name, thousands(m.built), thousands(m.after))
	}
	return nil
}

const memoryRow = "memory of one stack, built → after 1,000 calls"

func memoryLine(all []footprint) string {
	var cells [sides]string
	met := "–"
	for _, m := range all {
		cells[m.side] = fmt.Sprintf("%.1f → %.1f KB", float64(m.built)/1024, float64(m.after)/1024)
		if m.side == oursSide {
			met = yesNo(m.built <= 1536 && m.after <= 12*1024)
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | – | – | ≤ 1.5 → ≤ 12 KB, all measured | %s |", memoryRow,
		cells[floorSide], cells[peerSide], cells[failsafeSide], cells[oursSide], met)
}

func cell(s *score) string {
	if s == nil {
		return "–"
	}
	text := fmt.Sprintf("%s, %s B, %d", nanoseconds(s), thousands(s.bytes), s.allocs)
	if s.side == peerSide {
		text += " (" + s.name + ")"
	}
	return text
}

func nanoseconds(s *score) string {
	if s.exact < 100 {
		return fmt.Sprintf("%.1f ns", s.exact)
	}
	return thousands(int(s.exact)) + " ns"
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

func ratio(a, b *score) string {
	if a == nil || b == nil || b.exact == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a.exact/b.exact)
}

func metText(r result) string {
	if r.met == nil || r.ours() == nil {
		return "–"
	}
	return yesNo(r.met(r))
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// peerVersions are the modules of the contestants.
func peerVersions() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var versions []string
	for _, m := range info.Deps {
		for _, peer := range []string{"failsafe-go", "gobreaker", "backoff/", "retry-go", "go-retry", "aegis", "x/sync"} {
			if strings.Contains(m.Path, peer) {
				versions = append(versions, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
				break
			}
		}
	}
	return versions
}
