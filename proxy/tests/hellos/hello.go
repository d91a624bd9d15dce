// Says hello as Go's crypto/tls does.
package main

import (
	"crypto/tls"
	"os"
)

func main() {
	tls.Dial("tcp", os.Args[1]+":443", nil)
}
