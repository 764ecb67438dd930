package main

import (
	"sync"
	"time"
)

// fastClock is a clock on which every wait is over at once, and has taken the time that it should.
type fastClock struct {
	still bool // waits never end: only advance lets time pass

	mu  sync.Mutex // guards now
	now time.Time
}

func (c *fastClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fastClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *fastClock) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	if c.still {
		return fired
	}
	c.advance(d)
	fired <- c.Now()
	return fired
}
