package export

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// output is the file of an export. It has another name until it is complete, so
// that an incomplete file is not taken for a whole one.
type output struct {
	*bufio.Writer
	final string
	file  *os.File // nil for standard output
	gzip  *gzip.Writer
}

// partly is behind the name of a file that is not complete.
const partly = ".part"

// create opens a file of this name, which must not be there.
func create(name string, stdout io.Writer) (*output, error) {
	o := &output{final: name}
	to := stdout
	if name != "-" {
		if _, err := os.Lstat(name); err == nil {
			return nil, fmt.Errorf("%s is there: choose another name or remove it", name)
		}
		var err error
		if o.file, err = os.Create(name + partly); err != nil {
			return nil, err
		}
		to = o.file
	}
	if strings.HasSuffix(name, ".gz") {
		o.gzip = gzip.NewWriter(to)
		to = o.gzip
	}
	o.Writer = bufio.NewWriterSize(to, 1<<18)
	return o, nil
}

// name is what the file is called now.
func (o *output) name() string { return o.final + partly }

// keep completes the file and gives it its name.
func (o *output) keep() error {
	err := o.Flush()
	if o.gzip != nil {
		err = errors.Join(err, o.gzip.Close())
	}
	if o.file == nil || err != nil {
		return err
	}
	if err = errors.Join(o.file.Sync(), o.file.Close()); err != nil {
		return err
	}
	file := o.file
	o.file = nil
	return os.Rename(file.Name(), o.final)
}

// discard removes a file that was not completed.
func (o *output) discard() {
	if o.file != nil {
		_ = o.file.Close()
		_ = os.Remove(o.file.Name())
	}
}
