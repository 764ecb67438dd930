package resiliencehttp_test

import (
	"io"
	"log"
)

// quiet is for servers whose complaints are expected.
var quiet = log.New(io.Discard, "", 0)
