// Command games serves boards of connect four on cores that come, go and die, to players who are connected
// by WebSocket.
//
//	go run ./examples/games                     a cluster, cores, players and a page: kill a core
//	go run ./examples/games core                one core, beside a cluster that runs
//	go run ./examples/games move BOARD COLUMN   connect through a proxy, and make one move
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/examples/internal/demo"
	"github.com/nokv/nokv/member"
	"github.com/nokv/nokv/rooted"
)

const (
	keyspace = "games"
	// pageAddress is where the page is, if nothing else is said.
	pageAddress = "127.0.0.1:8090"
	// endWithin is how long a core that was asked to end has to give its boards away.
	endWithin = 20 * time.Second
	// moveWithin is how long a move is tried.
	moveWithin = time.Minute
)

func main() { os.Exit(demo.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:]) })) }

func run(ctx context.Context, args []string) error {
	command := "demo"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	f := flag.NewFlagSet("games "+command, flag.ContinueOnError)
	id := f.String("id", "", "`name` of the core")
	dir := f.String("dir", "", "`folder` of boards, which the cores share")
	ends := f.String("coordinator-addr", os.Getenv("NOKV_COORDINATOR_ADDR"), "`addresses` of coordinators")
	proxy := f.String("proxy", "127.0.0.1:8070", "`address` of nokv proxy")
	page := f.String("page", pageAddress, "`address` of the page, on this machine")
	boards := f.Int("boards", 150, "how many boards are played")
	pace := f.Duration("pace", time.Second, "`time` between two moves on a board")
	words := map[string]int{"move": 2}
	if err := demo.Parse(f, args, words[command]); err != nil {
		return err
	}
	switch command {
	case "demo":
		return show(ctx, *page, *boards, *pace)
	case "move":
		column, err := strconv.Atoi(f.Arg(1))
		if f.NArg() != 2 || err != nil || f.Arg(0) == "" {
			return fmt.Errorf("say which board and which column, 0 to %d: games move ann 3", columns-1)
		}
		return moveOnce(ctx, *proxy, f.Arg(0), column)
	case "core":
		if *id == "" || *dir == "" || *ends == "" {
			return errors.New("say who the core is, where boards are, and where coordinators: --id, --dir, --coordinator-addr")
		}
		// A core that cannot write would be given boards all the same.
		try, err := os.CreateTemp(*dir, ".core-")
		if err != nil {
			return fmt.Errorf("--dir is %q, where no board can be written: %w: name the folder that the cores share, or make it", *dir, err)
		}
		if err := errors.Join(try.Close(), os.Remove(try.Name())); err != nil {
			return err
		}
		return serve(ctx, *id, *dir, strings.Split(*ends, ","))
	}
	return fmt.Errorf("there is no %q: use core, move, or nothing for all of it", command)
}

// serve is a core: a member of the control plane, and a server of the boards that it owns. It ends
// when ctx does, after its boards were given to others, or when it cannot write any more.
func serve(ctx context.Context, id, dir string, coordinators []string) error {
	cl, err := client.New(client.Config{Endpoints: coordinators})
	if err != nil {
		return err
	}
	defer cl.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	m, err := member.New(member.Config{
		ID: id, Address: lis.Addr().String(), ProbeAddress: "127.0.0.1:0", Keyspaces: []string{keyspace}, Client: cl,
		Logger: demo.Logger(),
	})
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	running, broken := context.WithCancelCause(context.WithoutCancel(ctx))
	defer broken(nil)
	c := &core{id: id, dir: dir, broken: broken, boards: map[rooted.RegionID]*board{}}
	server := &http.Server{Handler: c.routes(m), ReadHeaderTimeout: 10 * time.Second}
	go func() { broken(server.Serve(lis)) }()
	go func() {
		select {
		case <-ctx.Done():
		case <-running.Done(): // it ends by itself
			return
		}
		drain, cancel := context.WithTimeout(running, endWithin)
		defer cancel()
		if err := m.Drain(drain, "the core was asked to end"); err != nil {
			fmt.Println("not drained:", err)
		}
		broken(nil)
	}()
	err = m.Run(running, c)
	if cause := context.Cause(running); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, server.Close())
}

// moveOnce is a player that makes one move, of whoever's turn it is, and has it acknowledged.
func moveOnce(ctx context.Context, proxy, name string, column int) error {
	ctx, cancel := context.WithTimeout(ctx, moveWithin)
	defer cancel()
	var mine Move
	var why error // the last try was in vain
	for {
		said, err := func() (said Message, err error) {
			c, err := connect(ctx, proxy, name)
			if err != nil {
				return said, err
			}
			defer c.CloseNow()
			for mine.Turn == 0 || said.Turn < mine.Turn {
				said = Message{}
				if err := wsjson.Read(ctx, c, &said); err != nil || said.Refused != "" {
					return said, err
				}
				if mine.Turn == 0 {
					mine = Move{Turn: said.Turn + 1, Seat: said.Seat(), Column: column}
				}
				if said.Turn < mine.Turn { // also behind another connection: it is recognised by its turn
					if err := wsjson.Write(ctx, c, mine); err != nil {
						return said, err
					}
				}
			}
			return said, nil
		}()
		switch {
		case said.Refused != "":
			return errors.New("refused: " + said.Refused)
		case err == nil:
			fmt.Printf("turn %d of %s is made: game %d, moves %s, won by %s; core %s, process %d\n",
				mine.Turn, name, said.Game, said.Moves, cmp.Or(said.Over, "nobody"), said.Core, said.PID)
			return nil
		case ctx.Err() == nil && mine.Turn == 0 && isFinal(err):
			return err
		case ctx.Err() == nil:
			why = err
			pause(ctx, redialAfter)
			continue
		case mine.Turn == 0:
			return fmt.Errorf("no move was made: %v; the last try: %v", ctx.Err(), cmp.Or(why, err))
		}
		return fmt.Errorf("turn %d of %s is not acknowledged, and may be made: %v; the last try: %v", mine.Turn, name, ctx.Err(), cmp.Or(why, err))
	}
}

// refusal is what a proxy or a core answers in place of a connection.
type refusal struct {
	status int
	said   string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the proxy answers %d: %s", r.status, r.said)
}

// isFinal says whether it is of no use to try again: the request is refused as it is, or no proxy is there.
func isFinal(err error) bool {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.status/100 == 4 && r.status != http.StatusTooManyRequests
	}
	return !errors.Is(err, context.DeadlineExceeded)
}

// connect is a connection to a board, wherever it is: the proxy holds the request until a core has it.
func connect(ctx context.Context, proxy, name string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	c, resp, err := websocket.Dial(ctx, "ws://"+proxy+"/boards/"+url.PathEscape(name), nil)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, err
	case resp == nil:
		return nil, fmt.Errorf("%w: say with --proxy where nokv proxy is", err)
	}
	said, _ := io.ReadAll(resp.Body)
	return nil, &refusal{resp.StatusCode, strings.TrimSpace(string(said))}
}
