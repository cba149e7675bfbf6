package state

import (
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
)

// The values that callers speak of live in package rooted.
type (
	// MemberID is rooted.MemberID.
	MemberID = rooted.MemberID
	// CoordinatorID is rooted.CoordinatorID.
	CoordinatorID = rooted.CoordinatorID
	// RegionID is rooted.RegionID.
	RegionID = rooted.RegionID
	// KeyspaceID is rooted.KeyspaceID.
	KeyspaceID = rooted.KeyspaceID
	// Era is rooted.Era.
	Era = rooted.Era
	// Token is rooted.Token.
	Token = rooted.Token
	// Epoch is rooted.Epoch.
	Epoch = rooted.Epoch
	// Owner is rooted.Owner.
	Owner = rooted.Owner
)

// DefaultKeyspace is rooted.DefaultKeyspace: the bootstrap makes it.
const DefaultKeyspace = rooted.DefaultKeyspace

// TokenFromProto is rooted.TokenFromProto.
func TokenFromProto(t *rootv1.RootToken) Token { return rooted.TokenFromProto(t) }

// EpochFromProto is rooted.EpochFromProto.
func EpochFromProto(e *rootv1.RegionEpoch) Epoch { return rooted.EpochFromProto(e) }
