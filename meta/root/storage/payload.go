package storage

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Payload is the serialized rootv1.Entry of a log entry. In an entry that
// changes who votes it rides inside raft's own change, which is returned as well;
// nil for all others.
func Payload(e *raftpb.Entry) (change *raftpb.ConfChangeV2, data []byte, err error) {
	switch e.GetType() {
	case raftpb.EntryNormal:
		return nil, e.GetData(), nil
	case raftpb.EntryConfChangeV2:
		change = &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), change); err != nil {
			return nil, nil, fmt.Errorf("decode a membership change: %w", err)
		}
		return change, change.GetContext(), nil
	}
	return nil, nil, fmt.Errorf("raft entry type %v", e.GetType())
}
