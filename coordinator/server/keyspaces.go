package server

import (
	"context"

	"github.com/nokv/nokv/coordinator/hook"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// CreateKeyspace implements coordinatorv1.CoordinatorServer.
func (s *Server) CreateKeyspace(ctx context.Context, req *coordinatorv1.CreateKeyspaceRequest) (*coordinatorv1.CreateKeyspaceResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	settings, err := settingsOf(req)
	if err != nil {
		return nil, err
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_KeyspaceCreated{KeyspaceCreated: &rootv1.KeyspaceCreated{
		Name: req.GetName(), Settings: settings,
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.CreateKeyspaceResponse{
		Keyspace: made(result).GetKeyspace(), Token: result.GetToken(),
		AlreadyExisted: !changed(result),
	}, nil
}

// settingsOf is what is set in a request's settings over its preset, or they alone.
func settingsOf(req *coordinatorv1.CreateKeyspaceRequest) (*rootv1.KeyspaceSettings, error) {
	preset := req.GetPreset()
	base := state.DefaultSettings()
	switch {
	case req.GetWhole() && preset != "":
		return nil, invalid("preset", "the settings are whole: no preset is laid under them")
	case req.GetWhole():
		return req.GetSettings(), nil
	case preset != "":
		var ok bool
		if base, ok = state.Preset(preset); !ok {
			return nil, invalid("preset", "there is no preset %.64q; there are tenants, games, actors, kv, partitions", preset)
		}
	}
	return state.MergeSettings(base, req.GetSettings()), nil
}

// UpdateKeyspace implements coordinatorv1.CoordinatorServer. The settings
// replace the rooted ones; a caller changes what GetKeyspace gave.
func (s *Server) UpdateKeyspace(ctx context.Context, req *coordinatorv1.UpdateKeyspaceRequest) (*coordinatorv1.UpdateKeyspaceResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	switch {
	case req.GetExpectedVersion() == 0:
		return nil, invalid("expected_version", "it is 0; give the version that the new settings are meant to follow")
	case req.GetSettings() == nil:
		return nil, invalid("settings", "there are none")
	}
	settings := req.GetSettings()
	if settings.GetLayout() == nil { // it never changes, so it need not be repeated
		keyspace, err := s.keyspaceNow(ctx, req.GetName())
		if err != nil {
			return nil, err
		}
		settings.Layout = keyspace.GetSettings().GetLayout()
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_KeyspaceUpdated{KeyspaceUpdated: &rootv1.KeyspaceUpdated{
		Name: req.GetName(), ExpectedVersion: req.GetExpectedVersion(), Settings: settings,
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.UpdateKeyspaceResponse{Keyspace: made(result).GetKeyspace(), Token: result.GetToken()}, nil
}

// DeleteKeyspace implements coordinatorv1.CoordinatorServer.
func (s *Server) DeleteKeyspace(ctx context.Context, req *coordinatorv1.DeleteKeyspaceRequest) (*coordinatorv1.DeleteKeyspaceResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	result, err := s.change(ctx, req.GetIdentity(), &rootv1.Event{Kind: &rootv1.Event_KeyspaceDeleted{KeyspaceDeleted: &rootv1.KeyspaceDeleted{
		Name: req.GetName(), ExpectedVersion: req.GetExpectedVersion(),
	}}})
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.DeleteKeyspaceResponse{Token: result.GetToken()}, nil
}

// keyspaceNow is a keyspace by a linearizable read, to fill in what a change
// leaves open. One that is not there is a new one: that the change is a repetition,
// or that there is nothing to change, is the root's to say.
func (s *Server) keyspaceNow(ctx context.Context, name string) (*rootv1.Keyspace, error) {
	served, err := s.serve(ctx, &coordinatorv1.ReadOptions{Freshness: coordinatorv1.Freshness_FRESHNESS_STRONG})
	if err != nil {
		return nil, err
	}
	if keyspace := served.state.KeyspaceByName(name); keyspace != nil {
		return keyspace, nil
	}
	return &rootv1.Keyspace{Name: name, Version: 1, Settings: state.DefaultSettings()}, nil
}

// GetKeyspace implements coordinatorv1.CoordinatorServer.
func (s *Server) GetKeyspace(ctx context.Context, req *coordinatorv1.GetKeyspaceRequest) (*coordinatorv1.GetKeyspaceResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	served, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	if err := served.mayRead(ctx, req.GetName()); err != nil {
		return nil, err
	}
	keyspace, err := served.keyspace(req.GetName())
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.GetKeyspaceResponse{
		Keyspace:   served.keyspaceFor(ctx, keyspace),
		Regions:    uint64(served.state.KeyspaceRegionCount(state.KeyspaceID(keyspace.GetId()))),
		Disclosure: served.disclosure(),
	}, nil
}

// ListKeyspaces implements coordinatorv1.CoordinatorServer.
func (s *Server) ListKeyspaces(ctx context.Context, req *coordinatorv1.ListKeyspacesRequest) (*coordinatorv1.ListKeyspacesResponse, error) {
	limit, err := limitOf(req.GetLimit(), DefaultListLimit, MaxListLimit)
	if err != nil {
		return nil, err
	}
	if len(req.GetAfter()) > state.MaxNameBytes {
		return nil, invalidLimit("after", uint64(len(req.GetAfter())), state.MaxNameBytes)
	}
	served, err := s.serve(ctx, req.GetRead())
	if err != nil {
		return nil, err
	}
	resp := &coordinatorv1.ListKeyspacesResponse{Disclosure: served.disclosure()}
	bytes := 0
	served.state.Keyspaces(req.GetAfter(), func(k *rootv1.Keyspace) bool {
		if served.mayRead(ctx, k.GetName()) != nil {
			return true
		}
		if len(resp.Keyspaces) == limit || bytes > MaxReplyBytes {
			resp.More = true
			return false
		}
		bytes += proto.Size(k)
		resp.Keyspaces = append(resp.Keyspaces, served.keyspaceFor(ctx, k))
		return true
	})
	return resp, nil
}

// keyspaceFor is a keyspace as a caller may see it: secrets that are in its settings are for those who may
// change it.
func (v *served) keyspaceFor(ctx context.Context, k *rootv1.Keyspace) *rootv1.Keyspace {
	if v.server.cfg.Access.May(ctx, v.state, rootv1.Verb_VERB_ADMIN, k.GetName()) == nil {
		return k
	}
	return withoutSecrets(k)
}

// withoutSecrets is a keyspace without what the addresses of its hooks may have beside an address.
func withoutSecrets(k *rootv1.Keyspace) *rootv1.Keyspace {
	policy, scaling := k.GetSettings().GetPolicy().GetHookUrl(), k.GetSettings().GetScaling().GetHookUrl()
	if policy == "" && scaling == "" {
		return k
	}
	k = proto.CloneOf(k)
	if policy != "" {
		k.Settings.Policy.HookUrl = hook.Address(policy)
	}
	if scaling != "" {
		k.Settings.Scaling.HookUrl = hook.Address(scaling)
	}
	return k
}

// checkName says what is wrong with the name of a keyspace. Which letters it
// may have is the root's to say.
func checkName(name string) error {
	switch {
	case name == "":
		return invalid("name", "it is empty")
	case len(name) > state.MaxNameBytes:
		return invalidLimit("name", uint64(len(name)), state.MaxNameBytes)
	default:
		return nil
	}
}

// checkKeyspace says what is wrong with the name of a keyspace that may be empty.
func checkKeyspace(name string) error {
	if len(name) > state.MaxNameBytes {
		return invalidLimit("keyspace", uint64(len(name)), state.MaxNameBytes)
	}
	return nil
}
