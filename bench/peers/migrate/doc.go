// Package migrate holds the code of docs/migration.md: the same client before and after, so that the page compiles and
// its tests show that both do the same.
package migrate

import (
	"context"
	"errors"
)

// Fetch asks a dependency for a number.
type Fetch func(ctx context.Context, key string) (int, error)

// ErrUnknownKey is an answer that another attempt does not change.
var ErrUnknownKey = errors.New("unknown key")

// Client is what the program calls, whatever protects it.
type Client interface {
	Get(ctx context.Context, key string) (int, error)
}
