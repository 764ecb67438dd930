package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/measuredgo/resilience"
)

// footprint is what one stack holds in memory.
type footprint struct {
	name         string
	side         side
	built, after int // bytes: built, and after 1,000 calls
}

// memory measures the heap under many stacks of a kind. The calls of this library's policy are spread over a minute of a
// clock of their own, with latencies from one millisecond to one second, so that its windows fill as in use.
func memory() []footprint {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	measured := func() stack {
		clock := &fastClock{now: day, still: true}
		return &timePassing{ours{everyMeasuredTerm(resilience.WithClock(clock))}, clock}
	}
	with := compositions()["backoff + gobreaker + semaphore"]
	return []footprint{
		footprintOf("by hand", floorSide, func() stack { return newFloor(usual()) }),
		footprintOf("backoff + gobreaker + semaphore", peerSide, func() stack { return with(usual()) }),
		footprintOf("failsafe-go", failsafeSide, func() stack { return newFailsafe(usual()) }),
		footprintOf("this library, every measured term on", oursSide, measured),
	}
}

func footprintOf(name string, of side, build func() stack) footprint {
	const many, calls = 100, 1000
	before := heap()
	stacks := make([]stack, many)
	for i := range stacks {
		stacks[i] = build()
	}
	built := heap()
	ctx := context.Background()
	for _, s := range stacks {
		for range calls {
			if err := s.call(ctx, succeed); err != nil {
				panic(err)
			}
		}
	}
	after := heap()
	runtime.KeepAlive(stacks)
	each := func(grown uint64) int { return int(grown-min(grown, before)) / many }
	return footprint{name, of, each(built), each(after)}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// timePassing lets time pass in each call.
type timePassing struct {
	ours
	clock *fastClock
}

func (c *timePassing) call(ctx context.Context, _ func(context.Context) error) error {
	return c.ours.call(ctx, func(context.Context) error {
		c.clock.advance(time.Duration(float64(time.Millisecond) * rand.ExpFloat64() * 60))
		return nil
	})
}
