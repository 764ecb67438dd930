package main

import (
	"context"
	"errors"
	"time"
)

// stack is a whole protection of one dependency.
type stack interface {
	call(ctx context.Context, fn func(ctx context.Context) error) error
}

// settings say the same thing to every stack.
type settings struct {
	deadline       time.Duration
	attempts       int
	delay          time.Duration // before the first retry; 0: retry at once
	attemptTimeout time.Duration
	consecutive    int     // failures in a row that open the breaker
	failureRatio   float64 // of the last 30 s that opens it, from 20 calls on
	openFor        time.Duration
	limit          int // calls at once: the highest that an adaptive limiter may choose
	roomyBudget    bool
}

// usual is what the rows measure: 30 s in all, 3 attempts of 10 s each, a breaker, at most 200 calls at once.
func usual() settings {
	return settings{
		deadline: 30 * time.Second, attempts: 3, delay: 100 * time.Millisecond, attemptTimeout: 10 * time.Second,
		consecutive: 5, failureRatio: 0.5, openFor: 15 * time.Second, limit: 200,
	}
}

// retrying is usual for calls whose first attempt fails: at once again, with a budget and a breaker that let every one of
// them pass.
func retrying() settings {
	s := usual()
	s.delay, s.failureRatio, s.roomyBudget = 0, 0.9, true
	return s
}

var (
	errDown    = errors.New("the dependency is down")
	errOpen    = errors.New("the breaker is open")
	errLimited = errors.New("too many calls at once")
)
