// Package budget bounds in bytes what callers can make a process hold.
//
// It owns counts, not memory. It promises:
//
//  1. What all accounts of a Holder have taken and not given back is at most the
//     holder's share of the total, but for calls that overlap with a Give and for
//     what is counted by Hold.
//  2. One account has at most as much as is left free: one caller gets half of a
//     share, n greedy ones get 1/(n+1) each, and a newcomer always finds as
//     much.
//  3. Take and Give are one atomic addition each as long as an account stays within
//     what it was granted, which is a chunk above its use while little is in use.
//  4. A refusal is REASON_OVERLOADED with retry_after_millis; it changed nothing.
//
// A nil Budget, Holder and Account bounds nothing, so that whoever counts need not
// ask whether there is a bound.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nokv/nokv/internal/reason"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// Kind is what bytes are held for.
type Kind uint8

// Kinds of holders.
const (
	// Receiving is messages of which a part has come.
	Receiving Kind = iota
	// Queued is requests of streams that were read and are not being answered.
	Queued
	// Waiting is calls that wait for the root.
	Waiting
	// Replies is what was given to the transport and has not left.
	Replies
)

// kinds has the share of each in sixteenths of the total. Half of it is left to what
// callers cannot make grow: rooted state, views, the frames that watches share, garbage.
var kinds = [...]struct {
	name       string
	sixteenths int64
}{
	Receiving: {"receiving", 2}, Queued: {"queued", 1}, Waiting: {"waiting", 2}, Replies: {"replies", 3},
}

// String is the name in metrics and refusals.
func (k Kind) String() string { return kinds[k].name }

// chunk is how far the grant of an account is above its use at most, in bytes.
const chunk = 64 << 10

// retryAfterMillis is the pause that a refusal asks for.
const retryAfterMillis = 20

// Budget is the bytes of one process. Make it with New.
type Budget struct {
	total   int64
	holders [len(kinds)]Holder
}

// New makes a budget of total bytes.
func New(total Size) *Budget {
	b := &Budget{total: int64(total)}
	for k := range b.holders {
		b.holders[k] = Holder{kind: Kind(k), limit: b.total * kinds[k].sixteenths / 16, accounts: map[string]*Account{}}
	}
	return b
}

// Granted is what all holders have taken, or keep ready for who takes next, in bytes.
func (b *Budget) Granted() (bytes int64) {
	if b != nil {
		for k := range b.holders {
			bytes += b.holders[k].granted.Load()
		}
	}
	return bytes
}

// Holder is the share of a kind.
func (b *Budget) Holder(k Kind) *Holder {
	if b == nil {
		return nil
	}
	return &b.holders[k]
}

// Holder is the bytes of one kind. Its methods may be called from any goroutine.
type Holder struct {
	kind    Kind
	limit   int64
	granted atomic.Int64 // written under mu
	refused atomic.Uint64

	mu       sync.Mutex // guards what follows
	peak     int64
	accounts map[string]*Account
}

// Account opens the account of a caller: a principal, or a connection. All who open
// it by the same key share it. Close must follow.
func (h *Holder) Account(key string) *Account {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.accounts[key]
	if a == nil {
		a = &Account{holder: h, key: key}
		h.accounts[key] = a
	}
	a.open.Add(1)
	return a
}

// Full says that more than three quarters are taken: what is new is better refused
// before it costs anything.
func (h *Holder) Full() bool { return h != nil && h.granted.Load() > h.limit/4*3 }

// Pressed says that as much is taken as those who ask Spares may: what nobody takes is
// better ended sooner than otherwise.
func (h *Holder) Pressed() bool { return h != nil && h.granted.Load() > h.spared() }

// spared is what is for those who ask Spares; the rest is left to everybody else, who are
// refused when the holder is Full.
func (h *Holder) spared() int64 { return h.limit / 8 * 5 }

// Excess is how many of so many bytes are more than two thirds of the share, where a
// holder that is Full should come down to; negative when they are less.
func (h *Holder) Excess(bytes int64) int64 {
	if h == nil {
		return -1
	}
	return bytes - h.limit/3*2
}

// Trim takes back what accounts keep ready and have not taken, so that a holder that
// is Full then is full of what is held.
func (h *Holder) Trim() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.accounts {
		h.lower(a, a.used.Load())
	}
}

// Places is how many calls that hold so many bytes each the share has room for, most
// at most.
func (h *Holder) Places(most, each int64) int64 {
	if h == nil {
		return most
	}
	return min(most, max(1, h.limit/each))
}

// Refusal is what Take returns when n bytes of a caller do not fit, and what is new
// is answered with when the holder is Full.
func (h *Holder) Refusal(n int) error {
	refusal := reason.New(rootv1.Reason_REASON_OVERLOADED,
		"%d bytes more do not fit in the memory for %s, %d of %d bytes are taken: try again, send less at a time, or raise --memory-budget",
		n, h.kind, h.granted.Load(), h.limit)
	refusal.Detail.Limit = uint64(h.limit)
	refusal.Detail.RetryAfterMillis = retryAfterMillis
	return refusal
}

// Account is what one caller has of a holder.
type Account struct {
	holder  *Holder
	key     string
	used    atomic.Int64
	granted atomic.Int64 // written under holder.mu
	open    atomic.Int32 // how many have it open; raised under holder.mu
}

// Take counts n bytes, or refuses and counts nothing.
func (a *Account) Take(n int) error {
	if a == nil || a.used.Add(int64(n)) <= a.granted.Load() || a.grow(int64(n)) {
		return nil
	}
	a.holder.refused.Add(1)
	return a.holder.Refusal(n)
}

// Hold counts n bytes whether they fit or not, because they are there already. Who
// holds asks Fits before it makes more.
func (a *Account) Hold(n int) {
	if a == nil || a.used.Add(int64(n)) <= a.granted.Load() {
		return
	}
	h := a.holder
	h.mu.Lock()
	defer h.mu.Unlock()
	if need := a.used.Load() - a.granted.Load(); need > 0 {
		h.raise(a, need)
	}
}

// Fits says that an account holds no more than is free, for those who Hold.
func (a *Account) Fits() bool {
	return a == nil || a.used.Load() <= a.holder.limit-a.holder.granted.Load()
}

// Spares is Fits for what is large and can wait or be asked for again: answers about many
// regions, parts of snapshots. It leaves enough to everybody else.
func (a *Account) Spares() bool {
	return a == nil || a.used.Load() <= a.holder.spared()-a.holder.granted.Load()
}

// grow raises the grant to what is used, or takes n back.
func (a *Account) grow(n int64) bool {
	h := a.holder
	h.mu.Lock()
	defer h.mu.Unlock()
	granted, all := a.granted.Load(), h.granted.Load()
	need := a.used.Load() - granted
	if need <= 0 {
		return true
	}
	if granted+need > h.limit-all-need {
		a.used.Add(-n)
		return false
	}
	h.raise(a, need)
	return true
}

// raise grants need bytes more, and a chunk while little is granted: what is kept
// ready of a share is never more than a quarter. h.mu is held.
func (h *Holder) raise(a *Account, need int64) {
	if h.granted.Load()+need < h.limit/4 {
		need += chunk
	}
	h.grant(a, a.granted.Load()+need)
}

// grant sets what an account may use. h.mu is held.
func (h *Holder) grant(a *Account, to int64) {
	all := h.granted.Add(to - a.granted.Swap(to))
	h.peak = max(h.peak, all)
}

// Give gives n bytes back that were taken.
func (a *Account) Give(n int) {
	if a == nil || n == 0 {
		return
	}
	used := a.used.Add(-int64(n))
	if used < 0 {
		panic(fmt.Sprintf("budget: account %s of %s gave back %d bytes more than it took", a.key, a.holder.kind, -used))
	}
	if a.granted.Load()-used > 2*chunk || used == 0 && a.open.Load() == 0 || a.holder.granted.Load() > a.holder.limit/4 {
		a.shrink()
	}
}

// shrink lowers the grant to what is used, and a chunk while there is room. An
// account that nobody has open ends when nothing is used.
func (a *Account) shrink() {
	h := a.holder
	h.mu.Lock()
	defer h.mu.Unlock()
	used := a.used.Load()
	to := used
	if h.granted.Load() <= h.limit/4 && a.open.Load() > 0 {
		to += chunk
	}
	if used = h.lower(a, to); used == 0 && a.open.Load() == 0 && h.accounts[a.key] == a {
		h.grant(a, 0)
		delete(h.accounts, a.key)
	}
}

// lower lowers the grant of an account, and returns what is used then. h.mu is held.
func (h *Holder) lower(a *Account, to int64) (used int64) {
	if to < a.granted.Load() {
		h.grant(a, to)
	}
	// Who took meanwhile within the old grant is seen here, or has seen the new one.
	if used = a.used.Load(); used > a.granted.Load() {
		h.grant(a, used)
	}
	return used
}

// Close ends one opening. What is taken may be given back later.
func (a *Account) Close() {
	if a != nil && a.open.Add(-1) == 0 {
		a.shrink()
	}
}

// Used is what is taken now, in bytes.
func (a *Account) Used() int64 {
	if a == nil {
		return 0
	}
	return a.used.Load()
}

// shown is how many accounts of a holder are shown by name.
const shown = 8

// Vars is a budget as /debug/vars shows it, in bytes.
type Vars struct {
	Total   int64                 `json:"total"`
	Holders map[string]HolderVars `json:"holders"`
}

// HolderVars is one holder of Vars.
type HolderVars struct {
	Limit int64 `json:"limit"`
	// Used is taken; Granted is taken or kept ready for who takes next, at most
	// Peak so far.
	Used     int64  `json:"used"`
	Granted  int64  `json:"granted"`
	Peak     int64  `json:"peak"`
	Refused  uint64 `json:"refused"`
	Accounts int    `json:"accounts"`
	// Largest are the accounts that have taken most.
	Largest []AccountVars `json:"largest,omitempty"`
}

// AccountVars is one account of HolderVars.
type AccountVars struct {
	Name string `json:"name"`
	Used int64  `json:"used"`
}

// Vars returns what is held now.
func (b *Budget) Vars() Vars {
	if b == nil {
		return Vars{}
	}
	out := Vars{Total: b.total, Holders: make(map[string]HolderVars, len(kinds))}
	for k := range b.holders {
		out.Holders[Kind(k).String()] = b.holders[k].vars()
	}
	return out
}

func (h *Holder) vars() HolderVars {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := HolderVars{Limit: h.limit, Granted: h.granted.Load(), Peak: h.peak, Refused: h.refused.Load(), Accounts: len(h.accounts)}
	for _, a := range h.accounts {
		used := a.used.Load()
		out.Used += used
		if used > 0 {
			out.Largest = append(out.Largest, AccountVars{a.key, used})
		}
	}
	slices.SortFunc(out.Largest, func(a, b AccountVars) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Name, b.Name))
	})
	out.Largest = slices.Clip(out.Largest[:min(shown, len(out.Largest))])
	return out
}
