package rooted

import (
	"slices"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// DrainedSignal in a MemberStateChanged of a verdict says that the member drained and had nothing
// any more: it left as it was to.
const DrainedSignal = "drained"

// HasLeft reports whether a member that is rooted as failed, which means that this incarnation never
// acts again, left as it was to.
func HasLeft(m *rootv1.Member) bool {
	return m.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED && slices.Contains(m.GetSignals(), DrainedSignal)
}
