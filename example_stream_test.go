package resilience_test

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/measuredgo/resilience"
)

// A stream is retried until its first element. From then on what it yields is passed on as it is.
func ExampleStream() {
	p := resilience.MustNew(resilience.WithBackoff(resilience.NoBackoff()))
	opened := 0
	lines := func(context.Context) iter.Seq2[string, error] {
		opened++
		return func(yield func(string, error) bool) {
			if opened == 1 {
				yield("", io.ErrUnexpectedEOF)
				return
			}
			_ = yield("one", nil) && yield("two", nil) && yield("", io.ErrUnexpectedEOF)
		}
	}
	for line, err := range resilience.Stream(context.Background(), p, lines) {
		fmt.Println(line, err)
	}
	fmt.Println("opened", opened, "times")
	// Output:
	// one <nil>
	// two <nil>
	//  unexpected EOF
	// opened 2 times
}
