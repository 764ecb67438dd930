package resiliencetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/measuredgo/resilience"
	"github.com/measuredgo/resilience/resiliencetest"
)

var errBusy = errors.New("db: busy")

func ExampleSequence() {
	var db resiliencetest.Sequence[string]
	db.Fail(resilience.Transient.Mark(errBusy)).Return("row 7")

	policy := resiliencetest.Instant(resilience.MustNew())
	row, err := resilience.Do(context.Background(), policy, db.Call)
	fmt.Println(row, err, db.Calls())
	for _, a := range db.Attempts() {
		fmt.Printf("attempt %d, at most %v\n", a.Number, a.Bound)
	}
	// Output:
	// row 7 <nil> 2
	// attempt 1, at most 10s
	// attempt 2, at most 10s
}

func ExampleSequence_Hang() {
	var db resiliencetest.Sequence[string]
	db.Hang().Return("row 7")

	policy := resiliencetest.Instant(resilience.MustNew(resilience.WithAttemptTimeout(10 * time.Millisecond)))
	result := resilience.TryDo(context.Background(), policy, db.Call)
	fmt.Println(result.Value, errors.Is(result.Attempts[0].Err, resilience.ErrAttemptTimeout))
	// Output: row 7 true
}

func ExampleRecorder() {
	var rec resiliencetest.Recorder
	var db resiliencetest.Sequence[string]
	db.Fail(errBusy).Return("row 7")

	policy := resiliencetest.Instant(resilience.MustNew(
		resilience.WithName("db"),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithListener(rec.Listen),
		resilience.WithClock(clock.NewMock()), // nothing takes time here
	))
	_ = policy.Run(context.Background(), db.Run)
	fmt.Print(&rec)
	// Output:
	// #  policy  event      attempt  duration  delay  details
	//   1  db      attempt    1        0s        0s     transient: db: busy
	//   2  db      retrying   2        0s        0s     db: busy
	//   3  db      attempt    2        0s        0s     ok
	//   4  db      succeeded  2        0s        0s
}

func ExampleInstant() {
	production := resilience.MustNew(
		resilience.WithAttempts(5),
		resilience.WithBackoff(resilience.ConstantBackoff(time.Hour)),
		resilience.WithClassifier(resilience.RetryAll()),
		resilience.WithDeadline(24*time.Hour),
	)
	var db resiliencetest.Sequence[string]
	db.Fail(errBusy)

	err := resiliencetest.Instant(production).Run(context.Background(), db.Run)
	fmt.Println(err)
	// Output: resilience: attempts exhausted after 5 attempts: db: busy
}

func ExampleRoundTripper() {
	var server resiliencetest.RoundTripper
	server.Respond(503, "busy").Respond(200, "hello")

	client := &http.Client{Transport: &server}
	for range 2 {
		resp, err := client.Get("http://greeter.test/hello")
		if err != nil {
			fmt.Println(err)
			return
		}
		text, _ := io.ReadAll(resp.Body)
		fmt.Println(resp.Status, string(text))
	}
	for _, leak := range server.Unclosed() {
		fmt.Println("not closed:", leak)
	}
	// Output:
	// 503 Service Unavailable busy
	// 200 OK hello
	// not closed: request 1: GET http://greeter.test/hello -> 503
	// not closed: request 2: GET http://greeter.test/hello -> 200
}

func ExampleInjector() {
	faults := resiliencetest.Injector{Seed: 6}
	query := resiliencetest.Inject(&faults, func(context.Context) (string, error) { return "row 7", nil })

	policy := resiliencetest.Instant(resilience.MustNew(resilience.WithAttempts(2), resilience.WithoutBudget()))
	failed := func() (n int) {
		for range 1000 {
			if _, err := resilience.Do(context.Background(), policy, query); err != nil {
				n++
			}
		}
		return n
	}
	fmt.Println("off:", failed())
	faults.Set(resiliencetest.Faults{Fail: 0.1})
	fmt.Println("one in ten fails, with a retry one call in a hundred:", failed())
	faults.Set(resiliencetest.Faults{})
	fmt.Println("off again:", failed())
	// Output:
	// off: 0
	// one in ten fails, with a retry one call in a hundred: 11
	// off again: 0
}

func ExampleInjector_RoundTripper() {
	var server resiliencetest.RoundTripper
	var faults resiliencetest.Injector
	client := &http.Client{Transport: faults.RoundTripper(&server)}

	faults.Set(resiliencetest.Faults{Fail: 1, Status: 503})
	resp, err := client.Get("http://greeter.test/hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "and", len(server.Requests()), "requests got through")
	// Output: 503 and 0 requests got through
}
