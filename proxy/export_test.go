package proxy

import (
	"context"
	"net"
)

// DialBy has members dialled so.
func (c *Config) DialBy(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	c.dial = dial
}
