package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"
)

// prepareRedis looks destinations up as a registry in Redis is asked: the set of members
// of a destination, then the address of one of them, which is two reads one after the
// other, on a connection for each caller. The protocol is written by hand, so that no
// client of it is in this module. What it writes is under a prefix of its own, and is
// removed at the end.
func (c *Config) prepareRedis(ctx context.Context, addr string) (work, func(), error) {
	prefix := fmt.Sprintf("nokv-bench:%x:", time.Now().UnixNano())
	conns := make([]*redis, c.Concurrency+1)
	end := func() {
		if last := conns[c.Concurrency]; last != nil {
			_ = last.each(c.Regions, func(i int) []string { return []string{"DEL", prefix + "destination:" + string(Key(i))} })
			_ = last.each(redisMembers, func(i int) []string { return []string{"DEL", fmt.Sprint(prefix, "member:", i)} })
		}
		for _, one := range conns {
			if one != nil {
				_ = one.conn.Close()
			}
		}
	}
	for i := range conns {
		var err error
		if conns[i], err = dialRedis(ctx, addr); err != nil {
			end()
			return nil, nil, err
		}
	}
	setup := conns[c.Concurrency]
	err := setup.each(c.Regions, func(i int) []string {
		return []string{"SADD", prefix + "destination:" + string(Key(i)), strconv.Itoa(i % redisMembers)}
	})
	if err == nil {
		err = setup.each(redisMembers, func(i int) []string {
			return []string{"HSET", fmt.Sprint(prefix, "member:", i), "address", fmt.Sprintf("10.0.0.%d:7000", i), "load", "1"}
		})
	}
	if err != nil {
		end()
		return nil, nil, fmt.Errorf("write what is looked up into redis: %w", err)
	}
	c.others = func() time.Duration { return setup.processor() }
	return func(_ context.Context, worker int) (uint64, error) {
		r := conns[worker]
		owners, err := r.call("SMEMBERS", prefix+"destination:"+string(Key(rand.IntN(c.Regions))))
		if err != nil {
			return 0, err
		}
		if len(owners) == 0 {
			return 0, errors.New("a destination that is there was not found")
		}
		found, err := r.call("HGET", prefix+"member:"+owners[rand.IntN(len(owners))], "address")
		if err == nil && len(found) != 1 {
			err = errors.New("a member that is there was not found")
		}
		return 1, err
	}, end, nil
}

// redisMembers is how many members the destinations are on.
const redisMembers = 4

// redis is a connection for one caller.
type redis struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

// redisPatience is how long an answer may take.
const redisPatience = 10 * time.Second

func dialRedis(ctx context.Context, addr string) (*redis, error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	r := &redis{conn: conn, in: bufio.NewReader(conn)}
	if _, err := r.call("PING"); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("redis at %s: %w", addr, err)
	}
	return r, nil
}

// call asks, and returns the texts of the answer.
func (r *redis) call(words ...string) ([]string, error) {
	r.add(words)
	if err := r.send(); err != nil {
		return nil, err
	}
	return r.read()
}

// each asks for n things, many before the first answer.
func (r *redis) each(n int, words func(int) []string) error {
	const together = 500
	for i := 0; i < n; i += together {
		until := min(i+together, n)
		for j := i; j < until; j++ {
			r.add(words(j))
		}
		if err := r.send(); err != nil {
			return err
		}
		for range until - i {
			if _, err := r.read(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *redis) add(words []string) {
	r.out = fmt.Appendf(r.out, "*%d\r\n", len(words))
	for _, word := range words {
		r.out = append(strconv.AppendInt(append(r.out, '$'), int64(len(word)), 10), "\r\n"...)
		r.out = append(append(r.out, word...), "\r\n"...)
	}
}

func (r *redis) send() error {
	if err := r.conn.SetDeadline(time.Now().Add(redisPatience)); err != nil {
		return err
	}
	_, err := r.conn.Write(r.out)
	r.out = r.out[:0]
	return err
}

// Most of an answer that is taken.
const (
	redisTexts = 1024
	redisBytes = 1 << 20
)

// read reads an answer: a text, a number, or a list of texts.
func (r *redis) read() ([]string, error) {
	kind, rest, err := r.line()
	if err != nil {
		return nil, err
	}
	switch kind {
	case '+', ':':
		return []string{rest}, nil
	case '-':
		return nil, fmt.Errorf("redis refused: %s", rest)
	case '$':
		text, ok, err := r.text(rest)
		if err != nil || !ok {
			return nil, err
		}
		return []string{text}, nil
	case '*':
		n, err := strconv.Atoi(rest)
		if err != nil || n > redisTexts {
			return nil, fmt.Errorf("redis answers with a list of %.20q", rest)
		}
		var all []string
		for range n {
			kind, rest, err := r.line()
			if err != nil {
				return nil, err
			}
			if kind != '$' {
				return nil, fmt.Errorf("redis answers with a list of %q", kind)
			}
			text, _, err := r.text(rest)
			if err != nil {
				return nil, err
			}
			all = append(all, text)
		}
		return all, nil
	}
	return nil, fmt.Errorf("redis answers with %q", kind)
}

func (r *redis) line() (kind byte, rest string, err error) {
	line, err := r.in.ReadSlice('\n')
	if err != nil {
		return 0, "", err
	}
	if len(line) < 3 {
		return 0, "", errors.New("redis answers with an empty line")
	}
	return line[0], string(line[1 : len(line)-2]), nil
}

// text reads one of so many bytes; false: there is none.
func (r *redis) text(size string) (string, bool, error) {
	n, err := strconv.Atoi(size)
	if err != nil || n > redisBytes {
		return "", false, fmt.Errorf("redis answers with a text of %.20q bytes", size)
	}
	if n < 0 {
		return "", false, nil
	}
	b := make([]byte, n+len("\r\n"))
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", false, err
	}
	return string(b[:n]), true, nil
}

// processor is the time of processors that the server has used; 0: it does not say.
func (r *redis) processor() (spent time.Duration) {
	said, err := r.call("INFO", "cpu")
	if err != nil || len(said) == 0 {
		return 0
	}
	for line := range strings.SplitSeq(said[0], "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if name != "used_cpu_sys" && name != "used_cpu_user" {
			continue
		}
		if seconds, err := strconv.ParseFloat(value, 64); err == nil {
			spent += time.Duration(seconds * float64(time.Second))
		}
	}
	return spent
}
