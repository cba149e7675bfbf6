package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// Publisher says who may ask for a kind of event.
type Publisher uint8

const (
	// ByRoot: root peers make it themselves, and take it from nobody.
	ByRoot Publisher = iota
	// ByCoordinators: coordinators make it, about themselves and the Tenure or for a
	// call of its own that says what it needs, and take it from nobody.
	ByCoordinators
	// ByCallers: whoever may change the cluster.
	ByCallers
)

// PublisherOf says who may ask for the event; what is not known is for nobody.
func PublisherOf(e *rootv1.Event) Publisher {
	switch e.GetKind().(type) {
	case *rootv1.Event_FenceExtended, *rootv1.Event_TenureClaimed, *rootv1.Event_TenureRetired, *rootv1.Event_HandoverAdvanced,
		*rootv1.Event_CoordinatorJoined, *rootv1.Event_CoordinatorLeft, *rootv1.Event_MemberJoined, *rootv1.Event_PinKeyRotated,
		*rootv1.Event_TenureEnded, *rootv1.Event_ClusterSettingsChanged, *rootv1.Event_AccessGranted, *rootv1.Event_AccessRevoked,
		*rootv1.Event_TokenKeyRotated, *rootv1.Event_TokenRevoked:
		return ByCoordinators
	case *rootv1.Event_MemberStateChanged,
		*rootv1.Event_KeyspaceCreated, *rootv1.Event_KeyspaceUpdated, *rootv1.Event_KeyspaceDeleted,
		*rootv1.Event_RegionBootstrapped, *rootv1.Event_RegionPublished, *rootv1.Event_RegionTombstoned, *rootv1.Event_RegionsAssigned,
		*rootv1.Event_PeerChangePlanned, *rootv1.Event_SplitPlanned, *rootv1.Event_MergePlanned, *rootv1.Event_MovePlanned,
		*rootv1.Event_MoveReady, *rootv1.Event_TransitionCompleted, *rootv1.Event_TransitionCancelled:
		return ByCallers
	default: // the bootstrap, root peers, feature levels
		return ByRoot
	}
}

// MaxHolderBytes is the most bytes of commands that are a holder's: what it needs to
// keep or hand over its authority has room of its own, beside what publishers ask for.
const MaxHolderBytes = 4 << 10

// OfHolder says that a command is about the Tenure and its fences alone.
func OfHolder(c *rootv1.Command) bool {
	for _, e := range c.GetEvents() {
		switch e.GetKind().(type) {
		case *rootv1.Event_FenceExtended, *rootv1.Event_TenureClaimed, *rootv1.Event_TenureRetired, *rootv1.Event_HandoverAdvanced:
		default:
			return false
		}
	}
	return len(c.GetEvents()) > 0
}

// Publishable refuses an event that is not for callers to ask for: an authority
// is claimed and a process joins by itself, it is not published.
func Publishable(e *rootv1.Event) *rootv1.ErrorDetail {
	if e.GetKind() == nil {
		return invalid("it has no kind")
	}
	if PublisherOf(e) == ByCallers {
		return nil
	}
	why := "it is the root's or a coordinator's own"
	switch e.GetKind().(type) {
	case *rootv1.Event_MemberJoined:
		why = "members register by RegisterMember"
	case *rootv1.Event_PinKeyRotated:
		why = "keys are made by RotatePinKey"
	case *rootv1.Event_TokenKeyRotated, *rootv1.Event_TokenRevoked:
		why = "keys of tokens are made by RotateTokenKey, and tokens are revoked by RevokeToken"
	case *rootv1.Event_TenureEnded:
		why = "an era is ended by EndTenure"
	case *rootv1.Event_AccessGranted, *rootv1.Event_AccessRevoked:
		why = "grants are made by GrantAccess, and taken back by RevokeAccess"
	}
	return invalid("%T cannot be published: %s", e.GetKind(), why)
}
