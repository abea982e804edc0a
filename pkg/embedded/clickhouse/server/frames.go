package server

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/go-faster/city"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sluice/pkg/embedded/clickhouse/library"
)

// frames reads ClickHouse's compressed frames: a checksum of 16 bytes, the method, the size
// of the frame from the method on, the size of the data, the data. (ch-go's reader stops at
// 128 MiB per frame, but its writer puts a whole block into one, and ClickHouse accepts
// 1 GiB.)
type frames struct {
	src   *bufio.Reader
	frame []byte // as on the wire, from the method on
	data  []byte
	pos   int
	zstd  *zstd.Decoder
}

const (
	checksumSize    = 16
	frameHeaderSize = 9
	maxFrame        = 1 << 30

	methodNone = 0x02
	methodLZ4  = 0x82
	methodZSTD = 0x90
)

func (f *frames) Read(p []byte) (int, error) {
	if f.pos == len(f.data) {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.data[f.pos:])
	f.pos += n
	return n, nil
}

func (f *frames) ReadByte() (byte, error) {
	if f.pos == len(f.data) {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	f.pos++
	return f.data[f.pos-1], nil
}

// rest is the unread bytes of the current frame.
func (f *frames) rest() int { return len(f.data) - f.pos }

func (f *frames) next() error {
	var head [checksumSize + frameHeaderSize]byte
	if _, err := io.ReadFull(f.src, head[:]); err != nil {
		return err
	}
	method := head[checksumSize]
	size := binary.LittleEndian.Uint32(head[checksumSize+1:])
	dataSize := binary.LittleEndian.Uint32(head[checksumSize+5:])
	if size < frameHeaderSize || size > maxFrame || dataSize == 0 || dataSize > maxFrame {
		return library.Exceptionf("INCORRECT_DATA", "Implausible compressed frame: %d bytes for %d", size, dataSize)
	}
	f.frame = append(f.frame[:0], head[checksumSize:]...)
	for uint32(len(f.frame)) < size { // grows with the received data
		start := len(f.frame)
		f.frame = append(f.frame, make([]byte, min(size-uint32(start), library.PieceSize))...)
		if _, err := io.ReadFull(f.src, f.frame[start:]); err != nil {
			return unexpectedEnd(err)
		}
	}
	sum := city.CH128(f.frame)
	if sum.Low != binary.LittleEndian.Uint64(head[:]) || sum.High != binary.LittleEndian.Uint64(head[8:]) {
		return library.Exceptionf("CHECKSUM_DOESNT_MATCH", "Checksum of a compressed frame doesn't match: corrupted data")
	}
	f.pos = 0
	return f.decompress(method, f.frame[frameHeaderSize:], int(dataSize))
}

func (f *frames) decompress(method byte, packed []byte, size int) (err error) {
	if cap(f.data) < size {
		f.data = make([]byte, size)
	}
	f.data = f.data[:size]
	n := 0
	switch method {
	case methodNone:
		n = copy(f.data, packed)
	case methodLZ4:
		n, err = lz4.UncompressBlock(packed, f.data)
	case methodZSTD:
		if f.zstd == nil {
			f.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame))
			if err != nil {
				return err
			}
		}
		f.data, err = f.zstd.DecodeAll(packed, f.data[:0])
		n = len(f.data)
	default:
		err = library.Exceptionf("UNKNOWN_COMPRESSION_METHOD", "Unknown compression method %#x", method)
	}
	if err == nil && n != size {
		err = library.Exceptionf("CANNOT_DECOMPRESS", "Compressed frame holds %d bytes where its header says %d", n, size)
	}
	if err != nil {
		f.data = f.data[:0]
		return err
	}
	return nil
}
