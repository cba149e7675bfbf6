// Package config reads raft_config.json: where a cluster's processes live.
//
// It owns the file's schema and nothing at run time. It promises: (1) a file is
// read strictly: an unknown or repeated field is an error that names the field
// and its line; (2) addresses and folders come in two scopes, host and docker,
// and a missing docker value is an error, never the host's; (3) the regions in
// the file are bootstrap metadata: routing never reads them.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
)

// Scope chooses between the two sets of addresses and folders.
type Scope string

// The scopes.
const (
	ScopeHost   Scope = "host"
	ScopeDocker Scope = "docker"
)

// ParseScope reads a scope; the empty string is ScopeHost.
func ParseScope(s string) (Scope, error) {
	switch Scope(s) {
	case "", ScopeHost:
		return ScopeHost, nil
	case ScopeDocker:
		return ScopeDocker, nil
	}
	return "", fmt.Errorf("scope %q: use host or docker", s)
}

// Defaults of the documented topology.
const (
	// DefaultCoordinatorAddr is where a coordinator listens, host:port.
	DefaultCoordinatorAddr = "127.0.0.1:2379"
)

// File is raft_config.json.
type File struct {
	// Coordinator is the first coordinator; others are started with flags.
	Coordinator Coordinator `json:"coordinator"`
	// MetaRoot lists the root peers' gRPC addresses and folders. The raft
	// transport's addresses are flags.
	MetaRoot []MetaRoot `json:"meta_root,omitempty"`
	// Stores maps store ids to addresses.
	Stores []Store `json:"stores,omitempty"`
	// Regions to publish once, when the cluster is made.
	Regions []Region `json:"regions,omitempty"`
}

// Coordinator says where a coordinator listens.
type Coordinator struct {
	Addr       string `json:"addr,omitempty"`
	DockerAddr string `json:"docker_addr,omitempty"`
	// WorkDir is kept for tools that put logs somewhere: a coordinator owns no file.
	WorkDir       string `json:"work_dir,omitempty"`
	DockerWorkDir string `json:"docker_work_dir,omitempty"`
}

// MetaRoot says where a root peer serves and keeps its files.
type MetaRoot struct {
	NodeID        uint64 `json:"node_id"`
	Addr          string `json:"addr"`
	DockerAddr    string `json:"docker_addr,omitempty"`
	WorkDir       string `json:"work_dir,omitempty"`
	DockerWorkDir string `json:"docker_work_dir,omitempty"`
}

// Store says where a store is reached.
type Store struct {
	StoreID    uint64 `json:"store_id"`
	Addr       string `json:"addr"`
	DockerAddr string `json:"docker_addr,omitempty"`
	WorkDir    string `json:"work_dir,omitempty"`
}

// Region is a region to publish when the cluster is made.
type Region struct {
	ID       uint64 `json:"id"`
	StartKey string `json:"start_key"`
	EndKey   string `json:"end_key"`
	Epoch    struct {
		Version     uint64 `json:"version"`
		ConfVersion uint64 `json:"conf_version"`
	} `json:"epoch"`
	Peers []struct {
		StoreID uint64 `json:"store_id"`
		PeerID  uint64 `json:"peer_id"`
	} `json:"peers"`
}

// Load reads and checks a file.
func Load(path string) (*File, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	f, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	return f, nil
}

// Parse reads and checks the bytes of a file.
func Parse(raw []byte) (*File, error) {
	if err := checkFields(raw); err != nil {
		return nil, err
	}
	var f File
	if err := json.Unmarshal(raw, &f); err != nil {
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) {
			return nil, fmt.Errorf("line %d: field %q is %s, want %s", lineAt(raw, typ.Offset), typ.Field, typ.Value, typ.Type)
		}
		return nil, err
	}
	return &f, f.validate()
}

func (f *File) validate() error {
	if err := checkAddrs("coordinator", f.Coordinator.Addr, f.Coordinator.DockerAddr); err != nil {
		return err
	}
	nodes := make(map[uint64]bool)
	for i, m := range f.MetaRoot {
		if m.NodeID == 0 || nodes[m.NodeID] {
			return fmt.Errorf("meta_root[%d]: node_id %d is zero or stands twice", i, m.NodeID)
		}
		nodes[m.NodeID] = true
		if err := checkAddrs(fmt.Sprintf("meta_root[%d]", i), m.Addr, m.DockerAddr); err != nil {
			return err
		}
	}
	stores := make(map[uint64]bool)
	for i, s := range f.Stores {
		if s.StoreID == 0 || stores[s.StoreID] {
			return fmt.Errorf("stores[%d]: store_id %d is zero or stands twice", i, s.StoreID)
		}
		stores[s.StoreID] = true
		if err := checkAddrs(fmt.Sprintf("stores[%d]", i), s.Addr, s.DockerAddr); err != nil {
			return err
		}
	}
	return f.validateRegions(stores)
}

func (f *File) validateRegions(stores map[uint64]bool) error {
	ids := make(map[uint64]bool)
	for i, r := range f.Regions {
		if r.ID == 0 || ids[r.ID] {
			return fmt.Errorf("regions[%d]: id %d is zero or stands twice", i, r.ID)
		}
		ids[r.ID] = true
		if r.EndKey != "" && r.StartKey >= r.EndKey {
			return fmt.Errorf("regions[%d]: start_key %q is not below end_key %q", i, r.StartKey, r.EndKey)
		}
		for _, p := range r.Peers {
			if !stores[p.StoreID] {
				return fmt.Errorf("regions[%d]: peer %d is on store %d, which is not in stores", i, p.PeerID, p.StoreID)
			}
		}
	}
	return nil
}

func checkAddrs(where string, addrs ...string) error {
	for _, a := range addrs {
		if a == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("%s: address %q: want host:port", where, a)
		}
	}
	return nil
}

// ResolveCoordinatorAddr returns the coordinator's address in a scope. Host
// scope falls back to DefaultCoordinatorAddr.
func (f *File) ResolveCoordinatorAddr(scope Scope) (string, error) {
	if scope == ScopeDocker {
		return required("coordinator.docker_addr", f.Coordinator.DockerAddr)
	}
	if f.Coordinator.Addr == "" {
		return DefaultCoordinatorAddr, nil
	}
	return f.Coordinator.Addr, nil
}

// ResolveCoordinatorWorkDir returns the coordinator's folder in a scope.
func (f *File) ResolveCoordinatorWorkDir(scope Scope) (string, error) {
	if scope == ScopeDocker {
		return required("coordinator.docker_work_dir", f.Coordinator.DockerWorkDir)
	}
	return required("coordinator.work_dir", f.Coordinator.WorkDir)
}

// ResolveMetaRoot returns a root peer's gRPC address and folder in a scope.
// The folder may be empty.
func (f *File) ResolveMetaRoot(node uint64, scope Scope) (addr, workDir string, err error) {
	for _, m := range f.MetaRoot {
		if m.NodeID != node {
			continue
		}
		if scope == ScopeDocker {
			addr, err = required(fmt.Sprintf("meta_root node %d docker_addr", node), m.DockerAddr)
			return addr, m.DockerWorkDir, err
		}
		addr, err = required(fmt.Sprintf("meta_root node %d addr", node), m.Addr)
		return addr, m.WorkDir, err
	}
	return "", "", fmt.Errorf("meta_root has no node %d", node)
}

// ResolveStore returns a store's address in a scope, and its folder on the host. The
// folder may be empty.
func (f *File) ResolveStore(id uint64, scope Scope) (addr, workDir string, err error) {
	for _, s := range f.Stores {
		if s.StoreID != id {
			continue
		}
		if scope == ScopeDocker {
			addr, err = required(fmt.Sprintf("stores: store %d docker_addr", id), s.DockerAddr)
			return addr, "", err
		}
		addr, err = required(fmt.Sprintf("stores: store %d addr", id), s.Addr)
		return addr, s.WorkDir, err
	}
	return "", "", fmt.Errorf("stores has no store %d", id)
}

// RootPeers returns the gRPC addresses of all root peers in a scope, by node id.
func (f *File) RootPeers(scope Scope) (map[uint64]string, error) {
	peers := make(map[uint64]string, len(f.MetaRoot))
	for _, m := range f.MetaRoot {
		addr, _, err := f.ResolveMetaRoot(m.NodeID, scope)
		if err != nil {
			return nil, err
		}
		peers[m.NodeID] = addr
	}
	return peers, nil
}

func required(field, value string) (string, error) {
	if value == "" {
		return "", fmt.Errorf("%s is not set in the config", field)
	}
	return value, nil
}

func lineAt(raw []byte, offset int64) int {
	offset = min(offset, int64(len(raw)))
	return 1 + bytes.Count(raw[:offset], []byte("\n"))
}
