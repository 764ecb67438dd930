package resilience

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"time"
)

// checker collects what is wrong with a configuration, so that one error reports all of it.
type checker struct {
	subject  string // the constructor that was called
	option   string // the option whose settings are being looked at, empty for none
	problems []error
}

// bare is a value that is printed as it is, a string would be quoted.
type bare string

func newChecker(subject string) *checker { return &checker{subject: subject} }

// refuse notes that field has a value outside of what is accepted.
func (c *checker) refuse(field string, value any, accepted string) {
	if s, ok := value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	where := c.subject
	if c.option != "" {
		where += ": " + c.option
	}
	c.problems = append(c.problems, fmt.Errorf("resilience: %s: %s is %v, want %s", where, field, value, accepted))
}

// under has look refuse settings of an option.
func (c *checker) under(option string, look func()) {
	c.option = option
	look()
	c.option = ""
}

// err is nil, or all problems joined, in the order in which they were found.
func (c *checker) err() error { return errors.Join(c.problems...) }

// positive refuses a duration that is not above zero.
func (c *checker) positive(field string, d time.Duration) {
	if d <= 0 {
		c.refuse(field, d, "more than 0")
	}
}

// within refuses a number outside [low, high]; NaN is outside of everything.
func (c *checker) within(field string, x, low, high float64, accepted string) {
	if !(x >= low && x <= high) {
		c.refuse(field, x, accepted)
	}
}

// above refuses a number that is not finite and larger than limit.
func (c *checker) above(field string, x, limit float64) {
	if !(x > limit) || math.IsInf(x, 0) {
		c.refuse(field, x, fmt.Sprintf("a finite number above %v", limit))
	}
}

// atLeast refuses an integer under low.
func (c *checker) atLeast(field string, n, low int) {
	if n < low {
		c.refuse(field, n, fmt.Sprintf("at least %d", low))
	}
}

// isNil also finds the nil that hides in an interface: a nil pointer, func, map, channel or slice.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan, reflect.Slice, reflect.UnsafePointer:
		return r.IsNil()
	}
	return false
}

// orDefault is value, or the documented default where the field was left zero.
func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
