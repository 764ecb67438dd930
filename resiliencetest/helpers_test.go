package resiliencetest_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/measuredgo/resilience"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("the dependency is down")

// spy is a test that only remembers how it fails.
type spy struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (*spy) Helper()            {}
func (s *spy) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *spy) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, fmt.Sprintf(format, args...))
}

func (s *spy) end() {
	for _, f := range s.cleanups {
		f()
	}
}

// nextLine is the line below its caller's, as a script names it: "own_test.go:46".
func nextLine() string {
	_, file, n, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), n+1)
}

// retrying is a policy to which every error is transient, without waits and budget.
func retrying(opts ...resilience.Option) resilience.Policy {
	return resilience.MustNew(append([]resilience.Option{
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithBackoff(resilience.NoBackoff()),
		resilience.WithoutBudget(),
	}, opts...)...)
}

// refuses requires that f is told what is wrong.
func refuses(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		require.Contains(t, fmt.Sprint(recover()), text)
	}()
	f()
}

func succeed(context.Context) error { return nil }
