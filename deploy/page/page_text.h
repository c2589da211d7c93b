// The texts that a page is made of, as they are in page.html, page.css and page.js.
#ifndef THERMOCLINE_DEPLOY_PAGE_PAGE_TEXT_H_
#define THERMOCLINE_DEPLOY_PAGE_PAGE_TEXT_H_

namespace thermocline {

extern const char kPageHtml[];
extern const char kPageStyle[];
extern const char kPageScript[];

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_PAGE_TEXT_H_
