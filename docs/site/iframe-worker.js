// Browsers start no worker from a folder on the disk. Where the site is read so, a frame that nobody sees does a
// worker's work: the theme's search. Elsewhere this does nothing.

if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement('iframe');
      frame.hidden = true;
      const add = () => {
        document.body.append(frame);
        const inside = frame.contentWindow, script = frame.contentDocument.createElement('script');
        inside.postMessage = data => this.dispatchEvent(new MessageEvent('message', {data}));
        script.src = new URL(address, location.href);
        script.addEventListener('load', () => {
          this.inside = inside;
          this.waiting.splice(0).forEach(data => this.postMessage(data));
        });
        frame.contentDocument.body.append(script);
      };
      if (document.body) add(); else addEventListener('DOMContentLoaded', add);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent('message', {data}));
      else this.waiting.push(data);
    }
  };
}
