package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// Lineage is the digest that a Legacy must carry behind a predecessor's Legacy
// of digest previous; 0 when the predecessor had none. It does not look at the
// digest that l has.
func Lineage(l *rootv1.Legacy, previous uint64) uint64 { return lineage(l, previous) }
