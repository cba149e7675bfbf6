package rootview_test

import (
	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/meta/root/client"
)

// The root client fills what a Follower needs, without an adapter.
var (
	_ rootview.Root        = (*client.Client)(nil)
	_ rootview.ReadIndexer = (*client.Client)(nil)
)
