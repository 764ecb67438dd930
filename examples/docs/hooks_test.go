package docs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/measuredgo/resilience"
)

var errNoToken = errors.New("login: no token")

type tokens struct {
	mu    sync.Mutex
	valid bool
}

// Renew gets a token where there is none that is valid.
func (t *tokens) Renew(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.valid {
		fmt.Println("a new token")
	}
	t.valid = true
	return nil
}

func (t *tokens) Expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.valid = false
}

func Example_beforeAttempt() {
	login := &tokens{}
	// region before
	orders := resilience.MustNew(
		resilience.WithName("orders"),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithRules(resilience.OnErrorIs(errNoToken, resilience.Transient)),
		resilience.WithBeforeAttempt(func(ctx context.Context, _ resilience.AttemptInfo) error {
			return login.Renew(ctx) // its error ends the call
		}),
	)
	// endregion
	attempts := 0
	fmt.Println(orders.Run(context.Background(), func(context.Context) error {
		if attempts++; attempts == 1 {
			login.Expire()
			return errNoToken
		}
		return nil
	}))

	// Output:
	// a new token
	// a new token
	// <nil>
}

type maintenance struct{ on bool }

func (m *maintenance) Check() error {
	if m.on {
		return &resilience.LimitedError{Limiter: "maintenance"}
	}
	return nil
}

func Example_admit() {
	window := &maintenance{on: true}
	// region admit
	db := resilience.MustNew(
		resilience.WithName("db"),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithAdmit(func(context.Context, resilience.AttemptInfo) error {
			return window.Check() // a *LimitedError: retried, costs no budget, no evidence for the breaker
		}),
	)
	// endregion
	calls := 0
	err := db.Run(context.Background(), func(context.Context) error {
		calls++
		return nil
	})
	fmt.Println(calls, errors.Is(err, resilience.ErrLimited))
	fmt.Println(err)

	// Output:
	// 0 true
	// resilience: db: attempts exhausted after 3 attempts: resilience: maintenance: limit reached
}

type conn struct{ id int }

func (c *conn) Healthy() bool { return c.id > 1 }
func (c *conn) Hangup()       { fmt.Println("connection", c.id, "is given back") }

func Example_discard() {
	dials := 0
	dial := func(context.Context) (*conn, error) {
		dials++
		return &conn{dials}, nil
	}
	// region discard
	policy := resilience.MustNew(
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithRules(resilience.OnResult("health", func(c *conn) resilience.Verdict {
			if !c.Healthy() {
				return resilience.Transient
			}
			return resilience.OK
		})),
		resilience.OnDiscard(func(c *conn) { c.Hangup() }), // *conn has no Close
	)
	c, err := resilience.Do(context.Background(), policy, dial)
	// endregion
	fmt.Println("connection", c.id, "is used", err)

	// Output:
	// connection 1 is given back
	// connection 2 is used <nil>
}
