package attack

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nokv/nokv/internal/testing/proctest"
	"github.com/nokv/nokv/test/size"
)

var (
	long = size.Bool("attack.long", "attack for -attack.lasts each, in full size")
	full = flag.Duration("attack.lasts", 30*time.Second, "how long an attack in full size lasts")
)

// orderEnv carries what the attacking process is to do.
const orderEnv = "NOKV_ATTACK"

// order is what the attacking process is to do.
type order struct {
	Attack  string
	Target  string // host:port
	Cluster uint64
	Size    int // of connections or streams: see the attack
	// Position is one of the cluster's log.
	Incarnation, Term, Index uint64
}

func TestMain(m *testing.M) {
	flag.Parse()
	if raw := os.Getenv(orderEnv); raw != "" {
		os.Exit(strike(raw))
	}
	os.Exit(proctest.Main(m))
}

// politely is the nice value of the attacking process: it is on the machine of
// those whom it attacks, and must not win by the processor time it takes itself.
const politely = 15

// strike carries out an order until standard input ends, and says on standard
// output what it has done, again and again.
func strike(raw string) int {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, politely); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var o order
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	run, ok := attacks[o.Attack]
	if !ok {
		fmt.Fprintf(os.Stderr, "no attack %q\n", o.Attack)
		return 1
	}
	a := newAttacker(o)
	go a.untilTold()
	var saying sync.WaitGroup
	saying.Go(func() {
		for a.pause(20 * time.Millisecond) {
			fmt.Println(strings.TrimSpace(a.summary()))
		}
	})
	run(a)
	saying.Wait()
	fmt.Println(strings.TrimSpace(a.summary()))
	return 0
}
