//go:build tools

// Names the program, so that go.mod and go.sum hold all that it is built from.
package tools

import _ "github.com/nats-io/nats-server/v2"
