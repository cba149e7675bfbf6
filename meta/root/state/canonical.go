package state

import (
	"encoding/binary"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// The canonical encodings of what a move of many regions has most of, without
// descriptors. Each equals appendMessage of the same; a field that the format gains is
// added in both ways.

// hashTransition equals hashRecord of the transition.
func hashTransition(p *rootv1.Transition) uint64 {
	var room [512]byte
	return hashBytes(appendTransition(binary.AppendUvarint(room[:0], tagTransition), p))
}

func appendTransition(b []byte, p *rootv1.Transition) []byte {
	b = appendStringField(b, 1, p.GetId())
	b = appendUintField(b, 2, uint64(p.GetKind()))
	b = appendUintField(b, 3, uint64(p.GetStatus()))
	b = appendUintField(b, 4, p.GetRegionId())
	b = appendUintField(b, 5, uint64(p.GetKeyspaceId()))
	b = appendEpochField(b, 6, p.GetBaseEpoch())
	b = appendOwnerField(b, 7, p.GetOwner())
	b = appendStringField(b, 8, p.GetSplitKey())
	b = appendUintField(b, 9, p.GetRightRegionId())
	b = appendEpochField(b, 10, p.GetRightBaseEpoch())
	b = appendTokenField(b, 11, p.GetPlannedAt())
	b = appendTokenField(b, 12, p.GetEndedAt())
	b = appendStringField(b, 13, p.GetReason())
	b = appendOwnerField(b, 14, p.GetFrom())
	b = appendTokenField(b, 15, p.GetReadyAt())
	b = appendUintField(b, 16, p.GetPrepareMaxMillis())
	b = appendUintField(b, 17, p.GetDeadlineMillis())
	b = appendUintField(b, 18, uint64(p.GetCause()))
	return append(b, 0)
}

// appendEvent appends an event.
func appendEvent(b []byte, e *rootv1.Event) []byte {
	switch k := e.GetKind().(type) {
	case *rootv1.Event_MovePlanned:
		b = appendMovePlanned(append(b, 28), k.MovePlanned)
	case *rootv1.Event_MoveReady:
		b = append(b, 29)
		b = appendStringField(b, 1, k.MoveReady.GetTransitionId())
		b = appendUintField(b, 2, k.MoveReady.GetIncarnation())
		b = appendUintField(b, 3, k.MoveReady.GetPlannedAt())
		b = append(b, 0)
	case *rootv1.Event_TransitionCompleted:
		b = append(b, 20)
		b = appendStringField(b, 1, k.TransitionCompleted.GetTransitionId())
		b = appendStringField(b, 2, k.TransitionCompleted.GetFrontier())
		if k.TransitionCompleted.GetSetFrontier() {
			b = append(b, 3, 1)
		}
		b = appendUintField(b, 4, k.TransitionCompleted.GetPlannedAt())
		b = append(b, 0)
	default:
		return appendMessage(b, e.ProtoReflect())
	}
	return append(b, 0)
}

func appendMovePlanned(b []byte, e *rootv1.MovePlanned) []byte {
	b = appendUintField(b, 1, e.GetRegionId())
	b = appendEpochField(b, 2, e.GetExpectedEpoch())
	b = appendOwnerField(b, 3, e.GetFrom())
	b = appendOwnerField(b, 4, e.GetTo())
	b = appendUintField(b, 5, e.GetPrepareMaxMillis())
	b = appendUintField(b, 6, e.GetDeadlineMillis())
	b = appendUintField(b, 7, uint64(e.GetReason()))
	return append(b, 0)
}

func appendEpochField(b []byte, number byte, e *rootv1.RegionEpoch) []byte {
	if e == nil {
		return b
	}
	b = append(b, number)
	b = appendUintField(b, 1, e.GetVersion())
	b = appendUintField(b, 2, e.GetConfVersion())
	return append(b, 0)
}

func appendOwnerField(b []byte, number byte, o *rootv1.Owner) []byte {
	if o == nil {
		return b
	}
	b = append(b, number)
	b = appendStringField(b, 1, o.GetMemberId())
	b = appendUintField(b, 2, o.GetPeerId())
	b = appendUintField(b, 3, o.GetIncarnation())
	b = appendUintField(b, 4, uint64(o.GetRole()))
	return append(b, 0)
}

func appendTokenField(b []byte, number byte, t *rootv1.RootToken) []byte {
	if t == nil {
		return b
	}
	b = append(b, number)
	b = appendUintField(b, 1, t.GetIncarnation())
	b = appendUintField(b, 2, t.GetTerm())
	b = appendUintField(b, 3, t.GetIndex())
	return append(b, 0)
}
