package resilience_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/measuredgo/resilience"
)

// hurry is a clock for examples and tests: whoever waits on it does not wait, the clock moves on instead.
type hurry struct {
	mu  sync.Mutex
	now time.Time
}

func (c *hurry) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *hurry) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	fired <- c.pass(d)
	return fired
}

// pass is a dependency, or a consumer, that takes that long.
func (c *hurry) pass(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

// A clock of one's own makes everything in a policy follow it: deadlines, waits, measurements and the private guards. Any
// type with Now and After will do, the mock of github.com/benbjohnson/clock for one.
func ExampleWithClock() {
	clock := &hurry{now: time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)}
	p := resilience.MustNew(resilience.WithClock(clock), resilience.WithAttempts(2),
		resilience.WithAttemptTimeout(10*time.Second), resilience.WithBackoff(resilience.ConstantBackoff(time.Minute)),
		resilience.WithDeadline(time.Hour))
	err := p.Run(context.Background(), func(ctx context.Context) error {
		<-ctx.Done() // a dependency that hangs
		return ctx.Err()
	})
	fmt.Println(err)
	fmt.Println(clock.Now().Format(time.TimeOnly))
	// Output:
	// resilience: attempts exhausted after 2 attempts (bound 10s): attempt timed out after 10s: context deadline exceeded
	// 12:01:20
}
