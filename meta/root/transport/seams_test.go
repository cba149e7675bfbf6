package transport_test

import (
	"net"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/server"
	"github.com/nokv/nokv/meta/root/storage"
	"github.com/nokv/nokv/meta/root/transport"
)

// The parts of a root peer fit together.
var (
	_ replica.Transport     = (*transport.Transport)(nil)
	_ server.Peers          = (*transport.Transport)(nil)
	_ transport.Receiver    = (*replica.Replica)(nil)
	_ server.Replica        = (*replica.Replica)(nil)
	_ server.Log            = (*storage.Storage)(nil)
	_ transport.Workdir     = (*storage.Storage)(nil)
	_ transport.Checkpoints = (*storage.Storage)(nil)
	_ transport.Listener    = (*net.TCPListener)(nil)
)
