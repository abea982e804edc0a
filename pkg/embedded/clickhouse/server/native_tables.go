package server

import (
	"context"

	"sluice/pkg/embedded/clickhouse/library"
)

// maxTables bounds the tables of one status request.
const maxTables = 4096

// serverTables is the answer to packetTables.
const serverTables = 9

// tables answers a table status request of a server that has this engine as a shard: which
// tables exist. None lags, since nothing is replicated.
func (c *client) tables(ctx context.Context) error {
	n, err := c.in.uvarint()
	if err != nil {
		return unexpectedEnd(err)
	}
	if n > maxTables {
		return library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "%d tables are more than the %d one may ask about", n, maxTables)
	}
	var there [][2]string
	for range n {
		var name [2]string // database and table
		for i := range name {
			if name[i], err = c.in.text(maxText); err != nil {
				return err
			}
		}
		var is []byte
		_, err := c.session.conn.Run(ctx, "EXISTS TABLE "+quoteName(name[0])+"."+quoteName(name[1]), "TabSeparated", func(chunk []byte) error {
			is = append(is, chunk...)
			return nil
		})
		if err != nil {
			return err
		}
		if len(is) > 0 && is[0] == '1' {
			there = append(there, name)
		}
	}
	c.out.PutByte(serverTables)
	c.out.PutUVarInt(uint64(len(there)))
	for _, name := range there {
		c.out.PutString(name[0])
		c.out.PutString(name[1])
		c.out.PutBool(false) // replicated
	}
	return c.flush()
}
